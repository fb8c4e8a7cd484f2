//! Where each stream of a rank goes: to the launcher's own stream, to a file, through the launcher, or nowhere.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::assignment::Assignment;
use crate::error::LaunchError;
use crate::job::{Job, Output};
use crate::logs::Streams;
use crate::output::{Filter, Passage, Show};

/// The route of one stream.
pub(crate) enum Route {
    Inherited,
    Nowhere,
    /// To a file, past the launcher.
    File(File),
    /// Through the launcher, which may keep a copy in a file.
    Passage(Show, Option<File>),
}

impl Route {
    /// The stream that the rank gets.
    pub(crate) fn target(&self) -> Result<Stdio, LaunchError> {
        Ok(match self {
            Route::Inherited => Stdio::inherit(),
            Route::Nowhere => Stdio::null(),
            Route::File(file) => file.try_clone().map_err(LaunchError::kernel("open a file twice"))?.into(),
            Route::Passage(..) => Stdio::piped(),
        })
    }

    /// The launcher's end of the pipe.
    pub(crate) fn passage(self, pipe: impl Read + AsFd + 'static) -> std::io::Result<Option<Passage>> {
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok(match self {
            Route::Passage(show, copy) => Some(Passage::new(pipe, show, copy)),
            Route::Inherited | Route::Nowhere | Route::File(_) => None,
        })
    }
}

/// The routes of a rank's standard output and standard error.
pub(crate) fn routes(
    job: &Job,
    assignment: &Assignment,
    local_rank: usize,
    filters: &[Option<Filter>; 2],
) -> Result<[Route; 2], LaunchError> {
    let rank = assignment.first_rank + local_rank;
    if job.output != Output::All {
        return Ok(match job.output {
            _ if rank == 0 => [Route::Inherited, Route::Inherited],
            Output::RankZeroAndErrors => [Route::Nowhere, Route::Passage(Show::Raw, None)],
            Output::RankZero | Output::All => [Route::Nowhere, Route::Passage(Show::Nothing, None)],
        });
    }
    let logs = &job.logs;
    let pick = |streams: Streams, is_stdout: bool| if is_stdout { streams.stdout } else { streams.stderr };
    let route = |is_stdout: bool, filter: &Option<Filter>| {
        let file = |asked: bool| {
            let path = log_file(job, assignment, local_rank, is_stdout).filter(|_| asked);
            path.map(|path| File::create(&path).map_err(|source| LaunchError::Logs { path, source })).transpose()
        };
        let tee = pick(logs.tee.of(local_rank), is_stdout);
        let redirect = pick(logs.redirects.of(local_rank), is_stdout);
        Ok(match (tee, redirect, logs.is_shown(local_rank)) {
            (true, _, true) => {
                Route::Passage(Show::Marked(logs.mark(&job.role, rank, local_rank), filter.clone()), file(true)?)
            }
            (true, _, false) | (false, true, _) => file(true)?.map_or(Route::Nowhere, Route::File),
            (false, false, true) if is_stdout => Route::Inherited,
            (false, false, false) if is_stdout => Route::Nowhere,
            // For the last lines of the failure report, whether or not they are shown.
            (false, false, true) => Route::Passage(Show::Raw, None),
            (false, false, false) => Route::Passage(Show::Nothing, None),
        })
    };
    let [stdout, stderr] = filters;
    Ok([route(true, stdout)?, route(false, stderr)?])
}

/// The log file of a stream, if the stream is logged.
pub(crate) fn log_file(job: &Job, assignment: &Assignment, local_rank: usize, is_stdout: bool) -> Option<PathBuf> {
    let name = if is_stdout { "stdout.log" } else { "stderr.log" };
    Some(job.logs.rank_folder(assignment.attempt, local_rank)?.join(name))
}

/// The files of filtered lines, which all ranks of an attempt share.
pub(crate) fn filters(job: &Job, assignment: &Assignment) -> Result<[Option<Filter>; 2], LaunchError> {
    let filter = |words: &Vec<String>, name: &str| {
        let folder = job.logs.attempt_folder(assignment.attempt).filter(|_| !words.is_empty());
        let Some(path) = folder.map(|folder| folder.join(name)) else { return Ok(None) };
        let file = File::create(&path).map_err(|source| LaunchError::Logs { path, source })?;
        Ok(Some(Filter { words: words.clone(), file: Arc::new(file) }))
    };
    let stdout = filter(&job.logs.stdout_filters, "filtered_stdout.log")?;
    Ok([stdout, filter(&job.logs.stderr_filters, "filtered_stderr.log")?])
}
