//! Parses the output of Slurm's commands about jobs.

/// A job's number. Each element of an array has a number of its own too.
pub type JobId = u64;

/// A job as reported by `scontrol show job --oneliner`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmJob {
    /// Its own number.
    pub id: JobId,
    /// For an array: the array's number, and the element's index or, for elements that wait together, all their
    /// indices.
    pub array: Option<(JobId, String)>,
    /// Its name.
    pub name: String,
    /// `RUNNING`, `PENDING`, `FAILED`, ...
    pub state: String,
    /// Why it waits, or why it ended; empty if Slurm says `None`.
    pub reason: String,
    /// How many times it was restarted.
    pub restarts: u64,
    /// How long it has run.
    pub run_time: String,
    /// The time limit.
    pub time_limit: String,
    /// The nodes on which it runs or ran, compressed; empty before it starts.
    pub nodes: String,
    /// The exit code and, after a colon, the signal.
    pub exit_code: String,
    /// The folder in which it runs.
    pub folder: String,
    /// The file of its standard output.
    pub output: String,
}

impl SlurmJob {
    /// The name that users type: `12`, or `12_3` for an element of an array.
    pub fn name_of_id(&self) -> String {
        match &self.array {
            Some((array, element)) if element.bytes().all(|byte| byte.is_ascii_digit()) => format!("{array}_{element}"),
            Some((array, elements)) => format!("{array}_[{elements}]"),
            None => self.id.to_string(),
        }
    }
}

/// The job submitted by `sbatch --parsable`: `ID` or `ID;CLUSTER`. Earlier lines may hold a site's own remarks.
pub fn submitted(text: &str) -> Option<(JobId, Option<String>)> {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let (id, cluster) = match line.split_once(';') {
        Some((id, cluster)) => (id, Some(cluster.to_owned())),
        None => (line, None),
    };
    Some((crate::value::number(id).filter(|_| !id.is_empty())?, cluster))
}

/// The numbers from `squeue --noheader --format=%F`: jobs, and arrays as wholes, each once.
pub fn job_ids(text: &str) -> Vec<JobId> {
    let mut ids: Vec<JobId> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The jobs of `scontrol show job --oneliner`, one per line; those of an array in the order of its elements.
pub fn jobs(text: &str) -> Vec<SlurmJob> {
    let mut jobs: Vec<SlurmJob> = text.lines().filter_map(job).collect();
    jobs.sort_by_key(|job| match &job.array {
        Some((array, elements)) => {
            let digits = elements.find(|c: char| !c.is_ascii_digit()).map_or(&elements[..], |end| &elements[..end]);
            (*array, digits.parse().unwrap_or(u64::MAX))
        }
        None => (job.id, 0),
    });
    jobs
}

fn job(line: &str) -> Option<SlurmJob> {
    let text = |key: &str| field(line, key).unwrap_or_default();
    let known =
        |key: &str| Some(text(key)).filter(|value| !["(null)", "None", "N/A"].contains(value)).unwrap_or_default();
    let array = text("ArrayJobId").parse().ok().map(|array| (array, text("ArrayTaskId").to_owned()));
    Some(SlurmJob {
        id: text("JobId").parse().ok()?,
        array,
        name: text("JobName").to_owned(),
        state: text("JobState").to_owned(),
        reason: known("Reason").to_owned(),
        restarts: text("Restarts").parse().unwrap_or(0),
        run_time: text("RunTime").to_owned(),
        time_limit: text("TimeLimit").to_owned(),
        nodes: known("NodeList").to_owned(),
        exit_code: text("ExitCode").to_owned(),
        folder: text("WorkDir").to_owned(),
        output: text("StdOut").to_owned(),
    })
}

/// The value after ` KEY=`, up to the next key. Values may contain blanks; keys begin with a capital letter.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let start = line.match_indices(key).find_map(|(at, _)| {
        let begins = at == 0 || line[..at].ends_with(' ');
        let value = at + key.len() + 1;
        (begins && line[at + key.len()..].starts_with('=')).then_some(value)
    })?;
    let value = line.get(start..)?;
    let ends = value.match_indices(' ').find(|(at, _)| begins_with_key(&value[at + 1..]));
    Some(value[..ends.map_or(value.len(), |(at, _)| at)].trim_end())
}

fn begins_with_key(text: &str) -> bool {
    let name = text.split('=').next().filter(|name| name.len() < text.len()).unwrap_or_default();
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "/:_".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As printed by a real controller (22.05).
    const ARRAY: &str = "JobId=3 ArrayJobId=1 ArrayTaskId=0 ArrayTaskThrottle=1 JobName=my job's x UserId=root(0) \
        GroupId=root(0) MCS_label=N/A Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 \
        Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:04 TimeLimit=00:05:00 TimeMin=N/A ReqNodeList=(null) \
        ExcNodeList=(null) NodeList=node[1-2] BatchHost=node1 NumNodes=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:* \
        Command=/home/a/b.sh WorkDir=/home/a Comment=a=b c  StdErr=/home/a/out 3.txt StdIn=/dev/null \
        StdOut=/home/a/out 3.txt Power= \n\
        JobId=1 ArrayJobId=1 ArrayTaskId=1-2%1 ArrayTaskThrottle=1 JobName=my job's x JobState=PENDING \
        Reason=JobArrayTaskLimit Restarts=0 ExitCode=0:0 RunTime=00:00:00 TimeLimit=00:05:00 NodeList= BatchHost= \
        WorkDir=/home/a StdOut=/home/a/out 1.txt Power= \n";

    #[test]
    fn records_of_an_array() {
        let found = jobs(&ARRAY.lines().rev().collect::<Vec<_>>().join("\n"));
        assert_eq!(found.iter().map(SlurmJob::name_of_id).collect::<Vec<_>>(), ["1_0", "1_[1-2%1]"]);
        let [running, waiting] = &found[..] else { panic!("{found:?}") };
        let expected = SlurmJob {
            id: 3,
            array: Some((1, "0".into())),
            name: "my job's x".into(),
            state: "RUNNING".into(),
            reason: String::new(),
            restarts: 2,
            run_time: "00:00:04".into(),
            time_limit: "00:05:00".into(),
            nodes: "node[1-2]".into(),
            exit_code: "0:0".into(),
            folder: "/home/a".into(),
            output: "/home/a/out 3.txt".into(),
        };
        assert_eq!(running, &expected);
        assert_eq!((waiting.reason.as_str(), waiting.nodes.as_str()), ("JobArrayTaskLimit", ""));
        assert_eq!(jobs("slurm_load_jobs error: Invalid job id specified\n\n"), []);
    }

    #[test]
    fn answers_of_sbatch_and_squeue() {
        let check = |text: &str, expected: Option<(u64, Option<&str>)>| {
            assert_eq!(submitted(text), expected.map(|(id, cluster)| (id, cluster.map(str::to_owned))), "{text}");
        };
        check("12\n", Some((12, None)));
        check("welcome\n12;alpha\n\n", Some((12, Some("alpha"))));
        for text in ["", "\n", "Submitted batch job 12", ";alpha", "-1"] {
            check(text, None);
        }
        assert_eq!(job_ids(" 7\n1\n1\nx\n\n"), [1, 7]);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC*", line in "JobId=[0-9]{1,25} ArrayJobId=[0-9é]* [ -~é]*") {
            jobs(&text);
            jobs(&line);
            submitted(&text);
            job_ids(&text);
        }
    }
}
