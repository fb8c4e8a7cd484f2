//! Members of process groups that outlive their leader: processes that a rank started and left behind.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Descriptors of the living processes of these groups. Each becomes readable once its process has ended.
///
/// The processes are found in `/proc`; if that is unreadable, none are found.
pub(crate) fn survivors(groups: &[Pid]) -> Vec<OwnedFd> {
    let is_member = |pid: Pid| is_alive_in(&fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?, groups);
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .filter_map(|pid| {
            is_member(pid)?;
            let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // Between the two calls, the number may have passed to another process.
            is_member(pid).map(|()| descriptor)
        })
        .collect()
}

/// `Some` if a `stat` file's content describes a living process in one of the groups.
fn is_alive_in(stat: &[u8], groups: &[Pid]) -> Option<()> {
    // "77 (any name) S 1 76 …": the name may contain blanks and parentheses. State, parent and group follow it.
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = std::str::from_utf8(stat.get(after_name..)?).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?;
    // A process that is being reaped has group -1, which is not a valid number.
    let group = Pid::from_raw(group.parse().ok().filter(|number| *number > 0)?)?;
    (!matches!(state, "Z" | "X") && groups.contains(&group)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines() {
        let groups = [Pid::from_raw(76).unwrap()];
        let check = |stat: &str, expected: bool| {
            assert_eq!(is_alive_in(stat.as_bytes(), &groups).is_some(), expected, "{stat}");
        };
        check("77 (sh) S 1 76 70 0", true);
        check("77 (a) R 1 76 (b c) S 1 76 70", true);
        check("77 (sh) Z 1 76 70 0", false);
        check("77 (sh) S 76 75 76 76", false);
        check("77 (sh) S 1", false);
        check("77 (sh) R 0 -1 -1 0", false);
        check("77 (sh) R 0 0 0 0", false);
        check("77", false);
        check("", false);
    }
}
