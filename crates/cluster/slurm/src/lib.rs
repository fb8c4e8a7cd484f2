//! Slurm as text: writes and checks sbatch scripts, and parses the output of Slurm's commands.
//!
//! Everything here is a function from text to text or values; the caller runs `sbatch`, `squeue` and `scontrol`.
//!
//! Use it where scripts are made or looked at, also on a machine without Slurm.
//!
//! ```
//! use enmasse_slurm::{Script, check};
//! let script = Script::new("flowers", ["enmasse", "train"]);
//! let text = script.text()?;
//! assert!(text.starts_with("#!/bin/bash\n#SBATCH --job-name=flowers\n"));
//! assert_eq!(check(&text), []);
//! let tutorial = "#!/bin/bash\n#SBATCH --ntasks=4\n#SBATCH --output= a.out\npython train.py\n";
//! let lines: Vec<usize> = check(tutorial).iter().map(|finding| finding.line).collect();
//! assert_eq!(lines, [2, 3, 4]);
//! # Ok::<(), enmasse_slurm::ScriptError>(())
//! ```

mod check;
mod error;
mod job;
mod nodes;
mod script;
mod shell;
mod sweep;
mod value;

pub use check::{Finding, MAX_SCRIPT_BYTES, check, gpus_of};
pub use error::ScriptError;
pub use job::{JobId, SlurmJob, job_ids, jobs, submitted};
pub use nodes::{NODES, cores_beside_gpus};
pub use script::{Container, ContainerRuntime, RunName, Script, run_folder};
pub use sweep::{Axis, Sweep, SweepElement};
pub use value::{SignalAhead, TimeLimit};
