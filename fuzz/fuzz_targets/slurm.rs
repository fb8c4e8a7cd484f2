//! sbatch scripts, and the answers of Slurm's commands.

#![no_main]

use enmasse_slurm::{Axis, SignalAhead, TimeLimit, check, job_ids, jobs, run_folder, submitted};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.split('\n').count();
    assert!(check(&text).iter().all(|finding| (1..=lines).contains(&finding.line)));
    let jobs = jobs(&text);
    assert!(jobs.len() <= lines && job_ids(&text).is_sorted());
    for job in &jobs {
        let _ = (job.name_of_id(), run_folder(&text, job));
    }
    if let Some((id, _)) = submitted(&text) {
        assert!(text.contains(&id.to_string()));
    }
    for line in text.lines().take(4) {
        if let Ok(axis) = Axis::parse(line) {
            assert!(!axis.values.is_empty() && axis.values.iter().all(|value| !value.is_empty()));
        }
        let _ = (line.parse::<TimeLimit>(), line.parse::<SignalAhead>());
    }
});
