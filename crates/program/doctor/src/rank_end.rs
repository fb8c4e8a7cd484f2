//! A rank's log of the latest attempt at its run: where the rank ran, and how it ended.

/// A rank's part in the latest attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEnd {
    pub rank: usize,
    /// The number of ranks of the attempt, if the log has it.
    pub world_size: Option<usize>,
    /// Machine and process, such as `node1:4711`; empty if the log does not have them.
    pub place: String,
    /// When the attempt began and when the log ends, such as `20260131-235959`, UTC.
    pub began: String,
    pub last: String,
    pub end: End,
}

impl RankEnd {
    /// The error with which the log ends.
    pub fn error(&self) -> Option<&str> {
        if let End::Error(message) = &self.end { Some(message) } else { None }
    }
}

/// How a log ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With the figures of a completed run.
    Done,
    /// With the line that it was asked to stop, and is saved.
    Stopped(String),
    /// With an error.
    Error(String),
    /// In the middle: the rank still runs, or was ended from outside.
    Silent,
}

/// Reads `logs/rank-R.log`; `None` if no line of it was written by a rank.
pub fn read_log(rank: usize, text: &str) -> Option<RankEnd> {
    let lines: Vec<(&str, &str)> = text.lines().filter_map(dated).collect();
    let is_introduction = |line: usize| lines.get(line).is_some_and(|(_, text)| introduction(text).is_some());
    // An attempt begins with the introductions of all ranks that the log knows.
    let first = (0..lines.len()).rfind(|&line| is_introduction(line) && (line == 0 || !is_introduction(line - 1)));
    let attempt = lines.get(first.unwrap_or(0)..).filter(|lines| !lines.is_empty())?;
    let own = attempt.iter().filter_map(|(_, text)| introduction(text)).find(|(of, ..)| *of == rank);
    let (_, world_size, place) = own.map_or((rank, None, ""), |(of, world_size, place)| (of, Some(world_size), place));
    let end = attempt.iter().rev().find_map(|(_, text)| end_of(text)).unwrap_or(End::Silent);
    let began = attempt.first()?.0.to_owned();
    let last = attempt.last()?.0.to_owned();
    Some(RankEnd { rank, world_size, place: place.to_owned(), began, last, end })
}

/// Time and text of a line.
fn dated(line: &str) -> Option<(&str, &str)> {
    let (time, text) = line.split_once(' ')?;
    let is_time = |(place, byte): (usize, u8)| if place == 8 { byte == b'-' } else { byte.is_ascii_digit() };
    (time.len() == "20260131-235959".len() && time.bytes().enumerate().all(is_time)).then_some((time, text))
}

/// `rank 3`, or `ranks 0 1 2`.
pub fn number(ranks: &[usize]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        ranks => format!("ranks {}", ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")),
    }
}

/// `2026-01-31 23:59:59` for people, from `20260131-235959`; any other text is unchanged.
pub fn clock(time: &str) -> String {
    match (time.is_ascii(), time.split_once('-')) {
        (true, Some((day, second))) if day.len() == 8 && second.len() == 6 => {
            let [year, month, day] = [&day[..4], &day[4..6], &day[6..]];
            format!("{year}-{month}-{day} {}:{}:{}", &second[..2], &second[2..4], &second[4..])
        }
        _ => time.to_owned(),
    }
}

/// `rank 1 of 2, node1:4711, cpu (...)` and `not distributed: node1:4711, cpu (...)`.
fn introduction(text: &str) -> Option<(usize, usize, &str)> {
    let (rank, world_size, rest) = match text.strip_prefix("not distributed: ") {
        Some(rest) => (0, 1, rest),
        None => {
            let (rank, rest) = text.strip_prefix("rank ")?.split_once(" of ")?;
            let (world_size, rest) = rest.split_once(", ")?;
            (rank.parse().ok()?, world_size.parse().ok()?, rest)
        }
    };
    let (place, _) = rest.split_once(", ")?;
    let (_, process) = place.rsplit_once(':')?;
    process.parse::<u32>().ok()?;
    Some((rank, world_size, place))
}

fn end_of(text: &str) -> Option<End> {
    if let Some(error) = text.strip_prefix("error: ") {
        return Some(End::Error(error.to_owned()));
    }
    match text {
        _ if text.starts_with("done in ") => Some(End::Done),
        _ if text.starts_with("stopped in epoch ") => Some(End::Stopped(text.to_owned())),
        _ => None,
    }
}

/// The rank that a message blames, if the message is a cause that the ranks agree on: `rank 1 on host node1 ...`.
pub fn blamed(message: &str) -> Option<usize> {
    let (rank, _) = message.strip_prefix("rank ")?.split_once(" on host ")?;
    rank.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log with one line per second.
    fn log(lines: &[&str]) -> String {
        lines.iter().enumerate().map(|(second, text)| format!("20260131-2359{second:02} {text}\n")).collect()
    }

    const SETUP: [&str; 3] =
        ["rank 0 of 2, node1:11, cpu", "rank 1 of 2, node2:22, cpu (avx2, 1 thread)", "model:  mlp"];

    #[test]
    fn the_latest_attempt_counts() {
        let check = |rank, text: &str, seconds: [&str; 2], world_size, place: &str, end: End| {
            let [began, last] = seconds.map(|second| format!("20260131-2359{second}"));
            let expected = RankEnd { rank, world_size, place: place.to_owned(), began, last, end };
            assert_eq!(read_log(rank, text), Some(expected), "{text}");
        };
        check(0, &log(&SETUP), ["00", "02"], Some(2), "node1:11", End::Silent);
        check(1, &log(&SETUP[1..]), ["00", "01"], Some(2), "node2:22", End::Silent);
        let done = [&SETUP[..], &["epoch 1/1: ...", "done in 2.0 s: best"]].concat();
        check(0, &log(&done), ["00", "04"], Some(2), "node1:11", End::Done);
        let failed = [&SETUP[..], &["error: rank 1 on host node2 exited: gone"]].concat();
        let error = End::Error("rank 1 on host node2 exited: gone".to_owned());
        check(0, &log(&failed), ["00", "03"], Some(2), "node1:11", error);
        let again = [&failed[..], &SETUP, &["resume: epoch 2"]].concat();
        check(0, &log(&again), ["04", "07"], Some(2), "node1:11", End::Silent);
        let stopped = "stopped in epoch 3, after 10 images: continue with --resume --out r";
        let alone = ["not distributed: my:host:7, cpu", stopped];
        check(0, &log(&alone), ["00", "01"], Some(1), "my:host:7", End::Stopped(stopped.to_owned()));
        // The beginning is cut off; one line is incomplete, and one is another program's.
        let torn = format!("2360 x\nhello\n{}20260131-2359", log(&["epoch 7/9: ...", "epoch 8/9: ..."]));
        check(3, &torn, ["00", "01"], None, "", End::Silent);
        for text in ["", "hello\n", "20260131-235959\n", "20260131x235959 a\n"] {
            assert_eq!(read_log(0, text), None, "{text}");
        }
    }

    #[test]
    fn introductions() {
        let check = |text: &str, expected: Option<(usize, usize, &str)>| assert_eq!(introduction(text), expected);
        check("rank 3 of 4, h:1, cpu (avx2), more", Some((3, 4, "h:1")));
        check("rank 3 of x, h:1, cpu", None);
        check("rank 3 of 4, h, cpu", None);
        check("rank 3 of 4", None);
        check("rank 3 on host h exited", None);
        check("not distributed: h:9, cpu", Some((0, 1, "h:9")));
    }

    #[test]
    fn times_for_people() {
        let check = |time: &str, expected: &str| assert_eq!(clock(time), expected);
        check("20260131-235959", "2026-01-31 23:59:59");
        check("2026013-1235959", "2026013-1235959");
        check("äääääääää-235959", "äääääääää-235959");
        check("", "");
    }

    #[test]
    fn blamed_ranks() {
        let check = |text: &str, expected: Option<usize>| assert_eq!(blamed(text), expected, "{text}");
        check("rank 12 on host h exited during barrier #3: gone", Some(12));
        check("rank 1 and the rank at 127.0.0.1:5 hold different tokens", None);
        check("non-finite loss inf on rank 1 at step 3", None);
        check("rank x on host h exited", None);
    }
}
