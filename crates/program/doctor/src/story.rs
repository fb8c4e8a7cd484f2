//! Why a run failed: the launcher's record and every rank's log, merged into one root cause. Pure: other modules read
//! the files.

use std::collections::BTreeMap;

use enmasse_comm::FlightRecord;
use enmasse_wording::utc_time;
use signal_hook::low_level::signal_name;

use crate::failure_record::FailureRecord;
use crate::flights;
use crate::rank_end::{End, RankEnd, blamed, clock, number};
use crate::report::Finding;
use enmasse_wording::counted;

/// The evidence in a run folder about the end of its run.
#[derive(Debug, Default)]
pub struct Evidence {
    /// The record of the launcher or of rank 0.
    pub record: Option<FailureRecord>,
    /// The ends of the ranks' logs, by rank.
    pub ends: Vec<RankEnd>,
    /// The ranks' flight records, by number.
    pub flights: Vec<(usize, FlightRecord)>,
    /// The process that writes to the folder now.
    pub writer: Option<u32>,
    /// Whether there is a checkpoint.
    pub resumable: bool,
}

/// Number of ranks that are listed individually.
const LISTED: usize = 8;

const ROOT_CAUSE: &str = "root cause";

impl Evidence {
    /// The root cause first, then the findings that support it.
    pub fn findings(mut self) -> Vec<Finding> {
        let latest = self.ends.iter().map(|end| end.began.clone()).max().unwrap_or_default();
        // Logs of ranks that the latest attempt no longer has: it began at least a second later.
        let first = self.ends.iter().find(|end| end.rank == 0).map_or(latest, |end| end.began.clone());
        let world_size = self.ends.iter().filter(|end| end.began >= first).find_map(|end| end.world_size);
        self.ends.retain(|end| world_size.is_none_or(|ranks| end.rank < ranks));
        let is_latest = |flight: &FlightRecord| utc_time(flight.time / 1000) >= first;
        self.flights.retain(|(rank, flight)| world_size.is_none_or(|ranks| *rank < ranks) && is_latest(flight));
        // Times are whole seconds. If a failure and the next attempt fall into the same second, the ranks' own ends
        // decide.
        let ended_well = |end: &RankEnd| matches!(end.end, End::Done | End::Stopped(_));
        let is_before = |time: &str| time < &*first || (time == first && self.ends.iter().all(ended_well));
        let earlier = self.record.take_if(|record| is_before(&record.time));
        let mut findings = vec![self.conclusion()];
        if let Some(finding) = findings.first().filter(|finding| finding.name == ROOT_CAUSE) {
            let process = self.record.as_ref().and_then(|record| record.process);
            let told =
                finding.text.replace(&process.map_or(String::new(), |process| format!(" (process {process})")), "");
            findings.extend(self.testimonies(&told));
            findings.extend(flights::finding(&self.flights, world_size));
        }
        findings.extend(self.ranks(world_size));
        findings.extend(earlier.map(|record| {
            Finding::note(
                "earlier",
                format!("an attempt before this one ended at {}: {}", clock(&record.time), words(&record)),
                "",
            )
        }));
        findings
    }

    fn conclusion(&self) -> Finding {
        if let Some(process) = self.writer {
            return Finding::ok("state", format!("the run is in progress: process {process} writes to its folder"))
                .fact("writer", process);
        }
        if let Some(record) = &self.record {
            return self.root_of_record(record);
        }
        if let Some((rank, message)) = self.accused() {
            return self.root_of_logs(rank, &message);
        }
        let of = |wanted: fn(&End) -> bool| self.ends.iter().find(|end| wanted(&end.end));
        if let Some(RankEnd { end: End::Stopped(text), .. }) = of(|end| matches!(end, End::Stopped(_))) {
            return Finding::ok("state", text);
        }
        if of(|end| *end == End::Done).is_some() {
            return Finding::ok("state", "the run has ended successfully");
        }
        match self.ends.iter().map(|end| end.last.as_str()).max() {
            Some(last) => {
                let text = format!(
                    "no rank has logged a reason, and the last line is from {}: all ranks were ended at once, from \
                     outside (SIGKILL, Ctrl-C, scancel, a time limit, the machine)",
                    clock(last)
                );
                Finding::problem(
                    ROOT_CAUSE,
                    text,
                    self.then_resume("ask the batch system (sacct) or the kernel's log (dmesg) for that time"),
                )
            }
            None => Finding::note("state", "no rank has begun to train here", "see the output of the command"),
        }
    }

    /// Adds to a remedy that the run can resume, if it can.
    fn then_resume(&self, first: &str) -> String {
        let resume = if self.resumable { "continue with --resume" } else { "start again: there is no checkpoint yet" };
        if first.is_empty() { resume.to_owned() } else { format!("{first}; then {resume}") }
    }

    /// The launcher has seen the processes end, and rank 0 has received the cause that the ranks agree on.
    fn root_of_record(&self, record: &FailureRecord) -> Finding {
        if record.kind == "interrupted" && record.rank.is_none() {
            let name = |signal| signal_name(signal).map_or(String::new(), |name| format!(" ({name})"));
            let signal = record.signal.map_or(String::new(), |signal| format!(" by signal {signal}{}", name(signal)));
            let text =
                format!("the launcher was asked to stop{signal} at {}, and stopped all ranks", clock(&record.time));
            return Finding::note(ROOT_CAUSE, text, self.then_resume("")).fact("kind", "interrupted");
        }
        let mut text = words(record);
        // The rank's own log takes precedence over the others' observations, unless the rank was killed.
        if record.signal.is_none()
            && let Some(own) = record.rank.and_then(|rank| self.own_word(rank))
            && !text.contains(own)
        {
            text = format!("{text}; its own log says: {own}");
        }
        let finding = Finding::problem(ROOT_CAUSE, text, self.then_resume(remedy(&record.kind, record.signal)));
        finding
            .fact("rank", record.rank)
            .fact("host", record.host.as_str())
            .fact("kind", record.kind.as_str())
            .fact("signal", record.signal)
            .fact("time", record.time.as_str())
    }

    fn root_of_logs(&self, rank: Option<usize>, message: &str) -> Finding {
        let own = rank.and_then(|rank| self.of_rank(rank));
        let mut text = match (rank, blamed(message)) {
            (Some(rank), None) => format!("rank {rank}: {message}"),
            _ => message.to_owned(),
        };
        let silent = own.filter(|own| own.end == End::Silent);
        if let Some(own) = silent {
            text.push_str(&format!("; its own log ends at {} without an error", clock(&own.last)));
        }
        let kind = if silent.is_some() { "exited" } else { "error" };
        Finding::problem(ROOT_CAUSE, text, self.then_resume(remedy(kind, None))).fact("rank", rank).fact("kind", kind)
    }

    fn of_rank(&self, rank: usize) -> Option<&RankEnd> {
        self.ends.iter().find(|end| end.rank == rank)
    }

    /// A rank's own report of its failure.
    fn own_word(&self, rank: usize) -> Option<&str> {
        self.of_rank(rank)?.error().filter(|message| blamed(message).is_none_or(|of| of == rank))
    }

    /// The rank that failed first, and its message: the rank that most ranks blame, and the one that this rank blames
    /// in turn. No rank if several report the same message about themselves, as they do when they detect a failure
    /// together.
    fn accused(&self) -> Option<(Option<usize>, String)> {
        let mut votes: BTreeMap<usize, usize> = BTreeMap::new();
        let errors = || self.ends.iter().filter_map(|end| Some((end.rank, end.error()?)));
        for rank in errors().filter_map(|(_, message)| blamed(message)) {
            *votes.entry(rank).or_default() += 1;
        }
        // Among equals the lowest rank: the keys are in order, and the first of the greatest counts is needed.
        let Some(most_blamed) = votes.iter().rev().max_by_key(|(_, count)| **count).map(|(rank, _)| *rank) else {
            let first = self.ends.iter().filter(|end| end.error().is_some()).min_by_key(|end| &end.last)?;
            let rank = first.rank;
            let message = first.error()?;
            let together = errors().any(|(other, same)| other != rank && same == message);
            return Some((Some(rank).filter(|_| !together), message.to_owned()));
        };
        let blames = |rank: usize| errors().find(|(by, _)| *by == rank).and_then(|(_, message)| blamed(message));
        let mut rank = most_blamed;
        let mut seen = vec![most_blamed];
        while let Some(next) = blames(rank).filter(|next| *next != rank) {
            if seen.contains(&next) {
                // If ranks blame each other in a circle, the majority decides.
                rank = most_blamed;
                break;
            }
            seen.push(next);
            rank = next;
        }
        let of_it = || errors().map(|(_, message)| message).find(|message| blamed(message) == Some(rank));
        Some((Some(rank), self.own_word(rank).or_else(of_it)?.to_owned()))
    }

    /// Other messages of the ranks.
    fn testimonies(&self, told: &str) -> Vec<Finding> {
        let mut said: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for end in &self.ends {
            if let Some(message) = end.error().filter(|message| !told.contains(message)) {
                said.entry(message).or_default().push(end.rank);
            }
        }
        let tell =
            |(message, ranks): (&str, Vec<usize>)| Finding::note("said", format!("{}: {message}", number(&ranks)), "");
        let record = self.record.iter().filter(|record| !record.stderr.is_empty());
        let stderr = record.map(|record| Finding::note("last lines", record.stderr.join(" | "), ""));
        said.into_iter().map(tell).take(LISTED).chain(stderr).collect()
    }

    /// How each rank ended, and where it ran.
    fn ranks(&self, world_size: Option<usize>) -> Option<Finding> {
        let first = self.ends.first()?;
        let count = world_size.unwrap_or(self.ends.len());
        let word = |end: &RankEnd| match end.end {
            End::Done => "done",
            End::Stopped(_) => "stopped as asked",
            End::Error(_) => "an error",
            End::Silent => "no last word",
        };
        let one = |end: &RankEnd| {
            let place = if end.place.is_empty() { String::new() } else { format!(" ({})", end.place) };
            format!("rank {}{place} until {}, {}", end.rank, clock(&end.last), word(end))
        };
        let mut list: Vec<String> = self.ends.iter().take(LISTED).map(one).collect();
        if self.ends.len() > LISTED {
            for kind in ["done", "stopped as asked", "an error", "no last word"] {
                let ranks: Vec<usize> =
                    self.ends.iter().skip(LISTED).filter(|end| word(end) == kind).map(|end| end.rank).collect();
                if !ranks.is_empty() {
                    list.push(format!("{kind}: {}", number(&ranks)));
                }
            }
        }
        let lacking = count.saturating_sub(self.ends.len());
        if lacking > 0 {
            list.push(format!("no log of {}", counted(lacking, "rank")));
        }
        let text = format!("{}, begun at {}: {}", counted(count, "rank"), clock(&first.began), list.join("; "));
        Some(Finding::ok("ranks", text).fact("world_size", count))
    }
}

/// A record as a sentence.
fn words(record: &FailureRecord) -> String {
    let who = record.rank.map_or("the group".to_owned(), |rank| format!("rank {rank}"));
    let host = if record.host.is_empty() { String::new() } else { format!(" on host {}", record.host) };
    let process = record.process.map_or(String::new(), |process| format!(" (process {process})"));
    // A signal says more than the cause that other ranks saw; the cause says more than an exit code.
    let what = match record.kind.as_str() {
        _ if record.signal.is_some() && !record.status.is_empty() => &record.status,
        "exited" => "exited",
        "killed" => "was killed",
        "silent" => "fell silent",
        "timeout" => "kept the others waiting",
        "desync" => "is out of step",
        "non-finite" => "met a non-finite value",
        "interrupted" => "was interrupted",
        "" if !record.status.is_empty() => &record.status,
        _ => "failed",
    };
    let during = if record.operation.is_empty() { String::new() } else { format!(" during {}", record.operation) };
    // Of a rank that a signal ended, other ranks only see that its connections have closed.
    let is_told = record.message.is_empty() || record.signal.is_some();
    let message = if is_told { String::new() } else { format!(": {}", record.message) };
    format!("{who}{host}{process} {what}{during}{message}")
}

/// The remedy for a failure; most messages contain their own.
fn remedy(kind: &str, signal: Option<i32>) -> &'static str {
    match (kind, signal) {
        (_, Some(9)) => {
            "if nobody sent the signal, the kernel did because memory ran out (see dmesg): lower --batch or the number of \
             ranks, or ask for more memory (Slurm: --mem)"
        }
        (_, Some(1 | 2 | 15)) => "only this rank was asked to stop: find out what sent the signal",
        (_, Some(4)) => "an instruction that this processor lacks: choose a lower --isa, and report it with this page",
        (_, Some(6 | 7 | 8 | 11)) => "this is a fault of the program or of the machine: report it with this page",
        (_, Some(24 | 25)) => "a limit was reached (see ulimit -a): raise it",
        (_, Some(_)) => "find out what sends that signal",
        ("exited", _) => {
            "that process ended without a message: see its standard error, its machine's log (dmesg), or the batch system's"
        }
        ("timeout", _) => {
            "check what that rank was doing (a disk or network that hangs, an image that cannot be read?); if it is only \
             slow, raise --timeout"
        }
        ("silent", _) => "check whether that machine still answers, and whether its process hangs or is stopped",
        ("desync", _) => "start every rank with the same command, with the same version and data",
        _ => "fix the error that the message names",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Status;

    const BEGAN: &str = "20260131-120000";

    fn end(rank: usize, end: End) -> RankEnd {
        let began = BEGAN.to_owned();
        let last = format!("20260131-12000{}", rank % 10);
        RankEnd { rank, world_size: Some(3), place: format!("node{rank}:1{rank}"), began, last, end }
    }

    fn error(text: &str) -> End {
        End::Error(text.to_owned())
    }

    fn record(rank: usize) -> FailureRecord {
        FailureRecord {
            time: "20260131-120009".to_owned(),
            rank: Some(rank),
            host: "h".to_owned(),
            kind: "exited".to_owned(),
            operation: "all_reduce(sum) of 8 f32 #17".to_owned(),
            message: "connection closed without goodbye".to_owned(),
            ..FailureRecord::default()
        }
    }

    /// Checks the status and text of the first finding.
    fn check(record: Option<FailureRecord>, ends: &[End], status: Status, expected: &str) {
        let ends = ends.iter().enumerate().map(|(rank, of)| end(rank, of.clone())).collect();
        let findings = Evidence { record, ends, resumable: true, ..Evidence::default() }.findings();
        assert_eq!((findings[0].status, findings[0].text.as_str()), (status, expected), "{findings:?}");
    }

    #[test]
    fn the_launchers_record_comes_first() {
        let gone = "rank 1 on host h exited during barrier #3: connection closed without goodbye";
        let killed = FailureRecord {
            process: Some(77),
            kind: "killed".to_owned(),
            signal: Some(9),
            status: "was killed by signal 9 (SIGKILL), possibly by the kernel for memory".to_owned(),
            ..record(1)
        };
        let text = "rank 1 on host h (process 77) was killed by signal 9 (SIGKILL), possibly by the kernel for memory during \
                    all_reduce(sum) of 8 f32 #17";
        check(Some(killed), &[error(gone), End::Silent, error(gone)], Status::Problem, text);
        // Rank 0 has recorded its observation; the failed rank has logged the reason.
        let text = "rank 1 on host h exited during all_reduce(sum) of 8 f32 #17: connection closed without goodbye; its own log \
                    says: cannot read a.jpg: it does not exist";
        let own = error("cannot read a.jpg: it does not exist");
        check(Some(record(1)), &[error(gone), own, error(gone)], Status::Problem, text);
        let asked = FailureRecord { rank: None, signal: Some(2), kind: "interrupted".to_owned(), ..record(0) };
        let text = "the launcher was asked to stop by signal 2 (SIGINT) at 2026-01-31 12:00:09, and stopped all ranks";
        check(Some(asked), &[End::Silent, End::Silent], Status::Note, text);
    }

    #[test]
    fn remedies() {
        let check = |resumable, signal, kind: &str, expected: &str| {
            let record = FailureRecord { signal, kind: kind.to_owned(), ..record(1) };
            let evidence = Evidence { record: Some(record), resumable, ..Evidence::default() };
            assert_eq!(evidence.findings()[0].remedy.as_deref(), Some(expected));
        };
        let fault = "this is a fault of the program or of the machine: report it with this page";
        check(true, Some(11), "killed", &format!("{fault}; then continue with --resume"));
        check(
            false,
            None,
            "error",
            "fix the error that the message names; then start again: there is no checkpoint yet",
        );
        let desync = "start every rank with the same command, with the same version and data";
        check(true, None, "desync", &format!("{desync}; then continue with --resume"));
    }

    #[test]
    fn without_a_record_the_logs_tell() {
        let gone = |rank: usize| error(&format!("rank {rank} on host h exited: gone"));
        let text = "rank 1 on host h exited: gone; its own log ends at 2026-01-31 12:00:01 without an error";
        check(None, &[gone(1), End::Silent, gone(1)], Status::Problem, text);
        // Rank 0 blames rank 1, which had only been told of rank 2.
        let text = "rank 2 on host h exited: gone; its own log ends at 2026-01-31 12:00:02 without an error";
        check(None, &[gone(1), gone(2), End::Silent], Status::Problem, text);
        // Two ranks that blame each other end the search.
        check(None, &[gone(1), gone(0), gone(1)], Status::Problem, "rank 1 on host h exited: gone");
        // The blamed rank's own message.
        check(None, &[gone(1), error("disk full"), gone(1)], Status::Problem, "rank 1: disk full");
        check(None, &[error("disk full")], Status::Problem, "rank 0: disk full");
        // No rank blames another: the first one counts.
        check(None, &[End::Silent, error("disk full"), error("disk still full")], Status::Problem, "rank 1: disk full");
        let together = error("non-finite loss inf on rank 1 at step 3");
        check(None, &[together.clone(), together], Status::Problem, "non-finite loss inf on rank 1 at step 3");
        let text = "no rank has logged a reason, and the last line is from 2026-01-31 12:00:01: all ranks were ended at \
                    once, from outside (SIGKILL, Ctrl-C, scancel, a time limit, the machine)";
        check(None, &[End::Silent, End::Silent], Status::Problem, text);
    }

    #[test]
    fn runs_that_have_not_failed() {
        check(None, &[End::Done, End::Done], Status::Ok, "the run has ended successfully");
        let stopped = "stopped in epoch 1, after 8 images: continue with --resume --out r";
        check(None, &[End::Stopped(stopped.to_owned()), End::Silent], Status::Ok, stopped);
        check(None, &[], Status::Note, "no rank has begun to train here");
        let working = Evidence { writer: Some(7), ends: vec![end(0, End::Silent)], ..Evidence::default() }.findings();
        assert!(working[0].status == Status::Ok && working[0].text.contains("process 7 writes"), "{working:?}");
    }

    #[test]
    fn an_attempt_may_begin_in_the_second_in_which_the_one_before_it_failed() {
        let check = |end_of_rank_0: End, expected: &str| {
            let ends = [RankEnd { world_size: Some(2), ..end(0, end_of_rank_0) }, end(1, End::Done)].to_vec();
            let record = Some(FailureRecord { time: BEGAN.to_owned(), ..record(1) });
            let findings = Evidence { record, ends, resumable: true, ..Evidence::default() }.findings();
            assert_eq!(findings[0].name, expected, "{findings:?}");
        };
        check(End::Done, "state");
        check(End::Silent, ROOT_CAUSE);
    }

    #[test]
    fn evidence_of_an_earlier_attempt() {
        let old = FailureRecord { time: "20260131-115959".to_owned(), ..record(1) };
        let mut leftover = end(2, error("rank 0 on host h exited: long ago"));
        (leftover.began, leftover.world_size) = ("20260131-110000".to_owned(), Some(4));
        let ends = [0, 1].map(|rank| RankEnd { world_size: Some(2), ..end(rank, End::Done) });
        let findings = Evidence {
            record: Some(old),
            ends: [&ends[..], &[leftover]].concat(),
            resumable: true,
            ..Evidence::default()
        }
        .findings();
        let texts: Vec<&str> = findings.iter().map(|finding| finding.text.as_str()).collect();
        let earlier = "an attempt before this one ended at 2026-01-31 11:59:59: rank 1 on host h exited during all_reduce(sum) of 8 f32 \
                       #17: connection closed without goodbye";
        let ranks = "2 ranks, begun at 2026-01-31 12:00:00: rank 0 (node0:10) until 2026-01-31 12:00:00, done; rank 1 (node1:11) until \
                     2026-01-31 12:00:01, done";
        assert_eq!(texts, ["the run has ended successfully", ranks, earlier]);
    }

    #[test]
    fn flights_of_the_latest_attempt_are_shown() {
        let noon = 1_769_860_800_000;
        let flight = |time| FlightRecord { time, activity: "starting".to_owned(), since: time, operations: vec![] };
        let check = |time: u64, ranks: &[usize], expected: Option<&str>| {
            let ends = [0, 1].map(|rank| RankEnd { world_size: Some(2), ..end(rank, error("no")) }).to_vec();
            let flights = ranks.iter().map(|&rank| (rank, flight(time))).collect();
            let findings = Evidence { ends, flights, ..Evidence::default() }.findings();
            let told = findings.iter().find(|finding| finding.name == "flight").map(|finding| finding.text.as_str());
            assert_eq!(told, expected, "{findings:?}");
        };
        let all = "ranks 0 1 were starting for 0 s, before any operation";
        check(noon, &[0, 1], Some(all));
        // Of a larger world, and of an earlier attempt.
        check(noon, &[0, 1, 2], Some(all));
        check(noon - 1000, &[0, 1], None);
    }

    #[test]
    fn many_ranks_are_summarised() {
        let gone = "rank 11 on host h exited: gone";
        let all = |rank| if rank == 11 { End::Silent } else { error(gone) };
        let ends = (0..12).map(|rank| RankEnd { world_size: Some(14), ..end(rank, all(rank)) }).collect();
        let findings = Evidence { record: None, ends, resumable: true, ..Evidence::default() }.findings();
        let ranks = findings.last().unwrap();
        assert!(
            ranks.text.ends_with("an error: ranks 8 9 10; no last word: rank 11; no log of 2 ranks"),
            "{}",
            ranks.text
        );
        // All of these messages are in the root cause already.
        assert_eq!(findings.len(), 2, "{findings:?}");
        let ends = vec![end(0, error("first")), end(1, error("second")), end(2, error("second"))];
        let record = FailureRecord { stderr: vec!["x".to_owned(), "y".to_owned()], ..record(0) };
        let findings = Evidence { record: Some(record), ends, resumable: true, ..Evidence::default() }.findings();
        let texts: Vec<&str> = findings[1..3].iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(texts, ["ranks 1 2: second", "x | y"]);
    }
}
