//! From a rank's place to its group.

use enmasse_comm::{JoinError, Rendezvous};

use super::{
    Interpretation, LOCAL_WORLD_SIZE, Launcher, MASTER_ADDR, MASTER_PORT, RANK, RESTART_COUNT, RUN_ID, WORLD_SIZE,
};

impl Interpretation {
    /// The information that this rank needs to join its group; `None` for a single process. The token, and a socket
    /// that the launcher opened, come from `variable`.
    ///
    /// # Errors
    /// A variable of the token, of the inherited socket or of the rendezvous cannot be used, or rank 0 would be open to
    /// other machines without a token.
    ///
    /// ```no_run
    /// use enmasse_launch::{LaunchedRank, process_variable};
    /// // Under torchrun, mpirun, srun or `enmasse launch`, or alone.
    /// let interpretation = LaunchedRank::interpret(process_variable)?;
    /// if let Some(rendezvous) = interpretation.rendezvous(&|name| std::env::var(name).ok())? {
    ///     rendezvous.join()?.barrier()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rendezvous(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Rendezvous>, JoinError> {
        let Some((place, (host, port))) = self.place.as_ref().and_then(|place| Some((place, place.master.as_ref()?)))
        else {
            return Ok(None);
        };
        let of_torch = self.launcher == Launcher::Torch;
        let found = |name: &str| match name {
            RANK => Some(place.rank.to_string()),
            WORLD_SIZE => Some(place.world_size.to_string()),
            LOCAL_WORLD_SIZE => self.is_local_told.then(|| place.local_world_size.to_string()),
            MASTER_ADDR => Some(host.clone()),
            MASTER_PORT => Some(port.to_string()),
            RUN_ID => Some(place.run_id.clone()),
            RESTART_COUNT => Some(self.attempt.to_string()),
            // The variable of a torchrun around another launcher is not meant for that launcher's ranks.
            "TORCHELASTIC_USE_AGENT_STORE" if !of_torch => None,
            _ => variable(name),
        };
        let mut rendezvous = Rendezvous::from_variables(&found)?;
        rendezvous.more_ports.clone_from(&self.more_ports);
        Ok(Some(rendezvous))
    }
}

#[cfg(test)]
mod tests {
    use super::super::LaunchedRank;
    use enmasse_comm::MeetingPoint;

    #[test]
    fn every_launcher_leads_to_a_group() {
        let check =
            |variables: &[(&str, &str)], address: &str, job: &str, ports: usize, meeting_point: MeetingPoint| {
                let find =
                    |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
                let interpretation = LaunchedRank::interpret(|name| find(name).map(Into::into)).unwrap();
                let found = interpretation.rendezvous(&find).unwrap().unwrap();
                assert_eq!((found.rank, found.world_size, &*found.job), (1, 2, job));
                assert!(found.address.starts_with(address), "{}", found.address);
                assert_eq!((found.more_ports.len(), found.meeting_point), (ports, meeting_point), "{variables:?}");
                assert_eq!((found.attempt, found.token.is_some()), (3, true));
            };
        let token = ("ENMASSE_TOKEN", "a secret of all the ranks");
        let agent = [("TORCHELASTIC_USE_AGENT_STORE", "True"), token];
        let torch = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "h"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "run"),
            ("TORCHELASTIC_RESTART_COUNT", "3"),
        ];
        let through_agent = MeetingPoint::AgentStore { same_machine: true };
        check(&[&torch[..], &agent].concat(), "h:29500", "run", 0, through_agent);
        check(&[&torch[..], &[token]].concat(), "h:29500", "run", 0, MeetingPoint::Address);
        let by_hand: Vec<_> = torch.iter().filter(|(name, _)| !name.starts_with("LOCAL")).copied().collect();
        let elsewhere = MeetingPoint::AgentStore { same_machine: false };
        check(&[&by_hand[..], &agent].concat(), "h:29500", "run", 0, elsewhere);
        let slurm = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
            ("SLURM_STEP_NODELIST", "node[1-2]"),
            ("SLURM_RESTART_COUNT", "3"),
        ];
        check(&[&slurm[..], &agent].concat(), "node1:", "7.0", 7, MeetingPoint::Address);
        let alone = LaunchedRank::interpret(|_| None).unwrap();
        assert!(alone.rendezvous(&|_| None).unwrap().is_none());
    }
}
