//! `--stage DIR`: the data copied to a disk of the node before it is read.
//!
//! Ranks of a launched job meet each second while they copy, so a slow node does not end the run.

use std::path::{Path, PathBuf};

use enmasse_dataset_tools::{Stage, StageError, StageEvent, Staged};
use enmasse_datasets::{LeftOut, is_remote, is_self_contained};
use enmasse_train::RunConfig;
use enmasse_wording::mebibytes;

use crate::failure::{Failure, failed, usage};
use crate::output::say;
use crate::output::transfer::Transfer;
use crate::ranks::Rank;

/// Who makes the copy.
#[derive(Clone, Copy)]
pub enum Copier<'a> {
    /// This process, before it starts any ranks.
    Alone,
    /// The process that started this rank has made it.
    Others,
    /// The ranks of a launched job, one of each node.
    Rank(&'a Rank),
}

/// The path to read the data in `root` from, and what of it is not in the copy: `root` itself without `--stage`.
pub fn stage(config: &RunConfig, root: &Path, copier: Copier) -> Result<(PathBuf, LeftOut), Failure> {
    let Some(folder) = &config.program.stage else { return Ok((root.to_owned(), LeftOut::default())) };
    if is_remote(root) {
        let root = root.display();
        return Err(usage!(
            "--stage: {root} is read through a cache on the disk already; name its place with --cache-dir"
        ));
    }
    if !is_self_contained(root) {
        let root = root.display();
        return Err(usage!("--stage: copies one folder or file, and {root} names others; leave it out"));
    }
    let stage = Stage::new(root, folder).map_err(failure)?.timeout(config.train.timeout(1));
    let staged = match copier {
        Copier::Others => return Ok((stage.made().map_err(failure)?, LeftOut::default())),
        Copier::Alone => {
            let staged = stage.make(&mut CopyProgress::default().follow()).map_err(failure)?;
            told(&staged);
            staged
        }
        Copier::Rank(rank) => {
            let speaks = rank.is_first();
            let staged = rank.at_once(&config.train, "stage", move || {
                let mut line = CopyProgress::default().follow();
                let made = stage.make(&mut |event| {
                    if speaks {
                        line(event)
                    }
                });
                made.map_err(failure)
            })?;
            if speaks {
                told(&staged);
            }
            staged
        }
    };
    Ok((staged.root, staged.left_out))
}

/// Says where the data is read.
fn told(staged: &Staged) {
    let place = staged.root.display();
    match staged.copied {
        Some(bytes) => say(format_args!("copied {} of data to {place}", mebibytes(bytes as usize))),
        None => say(format_args!("the copy of the data in {place} is up to date")),
    }
}

/// The line of progress of a copy.
#[derive(Default)]
struct CopyProgress {
    transfer: Option<Transfer>,
    waits: bool,
}

impl CopyProgress {
    fn follow(mut self) -> impl FnMut(StageEvent) {
        move |event| match event {
            StageEvent::Copied(bytes, total) => {
                self.transfer.get_or_insert_with(|| Transfer::new("copying")).show(bytes, total);
            }
            StageEvent::Waiting if !self.waits => {
                self.waits = true;
                say("another process copies the data; waiting for it");
            }
            StageEvent::Waiting | StageEvent::Listed(_) => {}
        }
    }
}

fn failure(error: StageError) -> Failure {
    failed!("--stage: {error}")
}
