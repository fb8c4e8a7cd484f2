//! Links between nodes by the MPI of the job, whose mpirun has started the ranks.

use std::time::Instant;

use super::JoinError;
use super::form::{Board, Seat};
use crate::mpi::{MpiError, MpiFamily, Process, hangs_between_hosts};
use crate::topology::Topology;
use crate::transport::hierarchical::Links;

impl From<MpiError> for JoinError {
    fn from(error: MpiError) -> Self {
        JoinError::Mpi(error.to_string())
    }
}

impl Seat<'_> {
    /// Links to each of this rank's peers, and the library's name. All ranks have the same library, or none starts it.
    /// `hosts` are the names of all ranks' machines.
    pub(super) fn connect_by_mpi(
        &self,
        board: &dyn Board,
        family: MpiFamily,
        topology: &Topology,
        hosts: &[&str],
    ) -> Result<(Box<dyn Links>, String), JoinError> {
        let runtime = Process::runtime(family);
        let own = match &runtime {
            Ok(runtime) => format!("{}\n{}", Process::next_tag(), runtime.name()),
            Err(error) => format!("\n{error}"),
        };
        let told = board.exchange("mpi", &own)?;
        let libraries = told.iter().map(|text| text.split_once('\n')).collect::<Option<Vec<_>>>();
        let libraries = libraries.ok_or_else(|| board.nonsense("a malformed library"))?;
        if let Some(why) = self.problem(&libraries) {
            return Err(JoinError::Mpi(why));
        }
        let name = libraries[0].1;
        if hangs_between_hosts(name) && hosts.iter().any(|host| *host != hosts[0]) {
            let why = format!(
                "{name} is known to hang at its end between hosts, here {} and others: use a later one or Open MPI, or leave MPI \
                 out, for TCP",
                hosts[0]
            );
            return Err(JoinError::Mpi(why));
        }
        let tags = libraries.iter().map(|(tag, _)| tag.parse::<i32>().ok());
        let tag = tags.max().flatten().ok_or_else(|| board.nonsense("a malformed tag"))?;
        let runtime = runtime?;

        let (process, processes) = Process::start(&runtime, || {
            board.go_on_waiting()?;
            match Instant::now() < self.deadline {
                true => Ok(()),
                false => Err(JoinError::Mpi(format!("{} has not started on all ranks", runtime.name()))),
            }
        })?;
        // A library that does not know the launcher takes each process for a job of its own.
        let rank = self.job_ranks[self.rank];
        let is_expected = process == rank && (processes == self.job_ranks.len() || !self.path.is_whole_job());
        let why = match is_expected {
            true => String::new(),
            false => format!(
                "to {} rank {rank} is process {process} of {processes}: start the ranks with the mpirun of that library",
                runtime.name()
            ),
        };
        if let Some(why) = board.exchange("mpi ready", &why)?.into_iter().find(|why| !why.is_empty()) {
            return Err(JoinError::Mpi(why));
        }
        let name = runtime.name().to_owned();
        let peers = topology.peers_of(self.rank).map(|peer| self.job_ranks[peer]).collect();
        let links = runtime.links(peers, Process::take_tag(tag)?);
        Ok((links.map_err(JoinError::SharedMemory)?, name))
    }

    /// Why the ranks do not use these libraries, each a tag and a name, or an error without a tag.
    fn problem(&self, libraries: &[(&str, &str)]) -> Option<String> {
        libraries.iter().enumerate().find_map(|(rank, (tag, name))| {
            let job_rank = self.job_ranks[rank];
            if tag.is_empty() {
                return Some(format!("on rank {job_rank}, {name}"));
            }
            let first = libraries[0].1;
            (*name != first).then(|| format!("rank {} has {first}, and rank {job_rank} has {name}", self.job_ranks[0]))
        })
    }
}
