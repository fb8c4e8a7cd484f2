//! The attempt of the job to which this process belongs, by its launcher's variables.

use std::ffi::OsString;

use enmasse_launch::{RESTART_COUNT, RUN_ID, launcher_without, process_variable};
use enmasse_train::Attempt;

/// The attempt of this process.
pub fn attempt() -> Attempt {
    read(process_variable, || launcher_without(RUN_ID))
}

/// Slurm's jobs have numbers; a launcher's job has the name that it was given, or is known by the launcher's process, which lives
/// through all restarts. Malformed numbers count as not set: the code that needs a rank's place reports them.
fn read(variable: impl Fn(&str) -> Option<OsString>, launcher: impl Fn() -> Option<String>) -> Attempt {
    let text = |name: &str| variable(name)?.into_string().ok().filter(|text| !text.trim().is_empty());
    let number = |name: &str| text(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let restarts = number(RESTART_COUNT);
    match text("SLURM_JOB_ID") {
        Some(job) => {
            Attempt { job: format!("slurm-{}", job.trim()), requeues: number("SLURM_RESTART_COUNT"), restarts }
        }
        None => {
            let job = match text(RUN_ID) {
                // torchrun's name for a job without a given name.
                Some(name) if name == "none" => launcher().map(|process| format!("torchrun-{process}")),
                name => name,
            };
            Attempt { job: job.unwrap_or_default(), requeues: 0, restarts }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_by_variables() {
        let check = |variables: &[(&str, &str)], job: &str, requeues: usize, restarts: usize| {
            let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            let launcher = || Some("9-5".to_owned());
            assert_eq!(read(find, launcher), Attempt { job: job.to_owned(), requeues, restarts }, "{variables:?}");
        };
        check(&[], "", 0, 0);
        check(&[("SLURM_JOB_ID", "12")], "slurm-12", 0, 0);
        check(&[("SLURM_JOB_ID", "12"), ("SLURM_RESTART_COUNT", "2")], "slurm-12", 2, 0);
        check(&[("SLURM_RESTART_COUNT", "2")], "", 0, 0);
        let launched = [(RUN_ID, "a"), (RESTART_COUNT, "3"), ("SLURM_JOB_ID", "12"), ("SLURM_RESTART_COUNT", "1")];
        check(&launched, "slurm-12", 1, 3);
        check(&launched[..2], "a", 0, 3);
        check(&[(RUN_ID, "none"), (RESTART_COUNT, "1")], "torchrun-9-5", 0, 1);
        check(&[(RUN_ID, " "), (RESTART_COUNT, "x")], "", 0, 0);
    }
}
