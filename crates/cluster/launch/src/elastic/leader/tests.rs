//! Messages and states at the limits of their numbers.

use super::*;

/// A leader of one node, and what it does when an agent joins that would run `next_attempt`.
fn joined(leader: &mut Leader, peer: u64, next_attempt: u32) -> Vec<LeaderAction> {
    let agent = AgentInfo { id: peer, host: "n".into(), address: "a".into(), local_world_size: 1 };
    let message = ToLeader::Join(Join { agent, visit: 1, port: 1, next_attempt });
    // Workers of a former leader are certainly gone by then.
    let now = Timing::default().fence() + Time::from_secs(1);
    leader.handle(now, LeaderEvent::Message { peer, address: "a".into(), message })
}

fn leader() -> Leader {
    let rules =
        Rules { least: 1, most: 1, max_restarts: 0, timing: Timing::default(), endpoint_host: "n".into(), agent: 0 };
    Leader::new(7, rules, Time::ZERO)
}

/// The attempt that is ordered, if any.
fn ordered(actions: &[LeaderAction]) -> Option<u32> {
    actions.iter().find_map(|action| match action {
        LeaderAction::Send { message: ToMember::Run(assigned), .. } => Some(assigned.attempt),
        _ => None,
    })
}

/// The number after the last one overflowed: a panic, or attempt 0 once more.
#[test]
fn the_number_of_the_next_attempt_overflowed() {
    let check = |next_attempt, expected: Option<u32>| {
        let actions = joined(&mut leader(), 1, next_attempt);
        assert_eq!(ordered(&actions), expected, "{next_attempt}: {actions:?}");
        assert_eq!(actions.contains(&LeaderAction::Close { peer: 1 }), expected.is_none());
    };
    check(0, Some(0));
    check(u32::MAX - 1, Some(u32::MAX - 1));
    check(u32::MAX, None);

    // The attempt after the last ends the job.
    let mut leader = leader();
    leader.next_attempt = u32::MAX;
    assert_eq!(ordered(&joined(&mut leader, 1, 0)), None);
    let report = "the numbers of attempts are used up".into();
    assert_eq!(leader.decision(), Some(&Decision::Failed { host: "n".into(), code: 1, report }));
}
