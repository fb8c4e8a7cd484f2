//! Groups of threads: the effect of every operation, in order and at its edges, and how a group ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cases::{every_operation, started_in_order};
use crate::common::{DEADLINE, run_ranks};
use enmasse_comm::{Cause, CauseKind, Group, GroupOptions, Reduce, Reduction};

fn threads(n: usize) -> Vec<Group> {
    Group::threads(n).unwrap()
}

#[test]
fn collectives_of_every_size() {
    for ranks in 1..=5 {
        // Around the direct limit, the slot, and several slots.
        for len in [0, 1, 2047, 2048, 2049, 65536, 65537, 200_001] {
            run_ranks(threads(ranks), move |group| every_operation(&group, len));
        }
    }
}

#[test]
fn bytes_of_different_lengths() {
    let results = run_ranks(threads(3), |group| group.all_gather_bytes(&vec![7; group.rank() * 1000]).unwrap());
    for gathered in results {
        assert_eq!(gathered, [vec![], vec![7; 1000], vec![7; 2000]]);
    }
}

#[test]
fn pieces_are_cut_at_cache_lines() {
    let check = |ranks: usize, len: usize, expected: &[usize]| {
        let group = &threads(ranks)[0];
        let ends: Vec<_> = (0..ranks).map(|rank| group.piece::<f32>(rank, len).end).collect();
        assert_eq!(ends, expected, "{len} elements on {ranks} ranks");
        assert!(group.piece::<f32>(ranks, len).is_empty());
    };
    check(1, 5, &[5]);
    check(2, 64, &[32, 64]);
    check(3, 100, &[48, 96, 100]);
    check(3, 7, &[7, 7, 7]);
}

#[test]
fn started_operations_end_in_order() {
    run_ranks(threads(3), |group| started_in_order(&group));
}

#[test]
fn a_slow_transport_leaves_the_caller_free() {
    let options = GroupOptions { delay_per_operation: Duration::from_secs(3600), ..GroupOptions::default() };
    let started = Arc::new(std::sync::Barrier::new(2));
    let results = run_ranks(Group::threads_with(2, options).unwrap(), move |group| {
        let mut data = [1f32; 10];
        // SAFETY: the data stays untouched until the handle has been waited for.
        let handle = unsafe { group.all_reduce_start(data.as_mut_ptr(), data.len()) };
        let under_way = !handle.is_done();
        started.wait();
        group.abort(group.own_cause(CauseKind::Interrupted, "seen enough"));
        (under_way, handle.wait().unwrap_err().kind)
    });
    assert_eq!(results, [(true, CauseKind::Interrupted); 2]);
}

/// All ranks report one cause, in time, and for every later operation.
fn check_failure(n: usize, body: impl Fn(&Group) -> Result<(), Arc<Cause>> + Clone + Send + 'static, expected: &str) {
    let began = Instant::now();
    let body = body;
    let keep = threads(n);
    let causes = run_ranks(keep, move |group| {
        let cause = body(&group).unwrap_err();
        assert_eq!(group.barrier().unwrap_err(), cause);
        assert_eq!(group.check().unwrap_err(), cause);
        assert_eq!(group.cause(), Some(cause.clone()));
        cause
    });
    assert!(began.elapsed() < DEADLINE / 6, "{:?}", began.elapsed());
    for cause in &causes {
        assert_eq!(cause, &causes[0], "ranks tell different stories");
        let text = cause.to_string();
        assert!(text.contains(expected), "{text:?} lacks {expected:?}");
    }
}

#[test]
fn ranks_out_of_step_are_named_with_what_they_do() {
    check_failure(
        2,
        |group| if group.rank() == 0 { group.barrier() } else { group.all_reduce(&mut [0f32; 9]) },
        "rank 0 runs barrier #1 while rank 1 runs all_reduce(sum) of 9 f32 #1",
    );
    check_failure(
        3,
        |group| {
            group.barrier()?;
            group.all_reduce(&mut vec![0f32; if group.rank() == 2 { 70_001 } else { 70_000 }])
        },
        "rank 0 runs all_reduce(sum) of 70000 f32 #2 while rank 2 runs all_reduce(sum) of 70001 f32 #2",
    );
    check_failure(
        2,
        |group| if group.rank() == 0 { group.all_reduce(&mut [0f64; 4]) } else { group.all_reduce(&mut [0i64; 4]) },
        "rank 0 runs all_reduce(sum) of 4 f64 #1 while rank 1 runs all_reduce(sum) of 4 i64 #1",
    );
    check_failure(
        2,
        |group| match group.rank() {
            0 => group.reduce_scatter(&mut [0f32; 4]),
            _ => group.all_gather_pieces(&mut [0f32; 4]),
        },
        "rank 0 runs reduce_scatter(sum) of 4 f32 #1 while rank 1 runs all_gather_pieces of 4 f32 #1",
    );
    check_failure(
        2,
        |group| group.all_gather_parts(&mut [0f32; 4], &[3 + group.rank(), 4]),
        "rank 0 runs all_gather_pieces of 4 f32 #1 (in other parts) while rank 1 runs all_gather_pieces of 4 f32 #1 (in other",
    );
    check_failure(
        2,
        |group| group.broadcast(&mut [0u8; 4], group.rank()),
        "rank 0 runs broadcast of 4 u8 from rank 0 #1 while rank 1 runs broadcast of 4 u8 from rank 1 #1",
    );
    check_failure(
        2,
        |group| {
            let reduction = if group.rank() == 0 { Reduction::Max } else { Reduction::Min };
            group.all_reduce_with(&mut [0i32; 4], reduction)
        },
        "rank 0 runs all_reduce(max) of 4 i32 #1 while rank 1 runs all_reduce(min) of 4 i32 #1",
    );
}

#[test]
fn invalid_calls_end_the_group() {
    check_failure(2, |group| group.broadcast(&mut [0u8; 4], 2), "broadcast of 4 u8 from rank 2: there is no rank 2");
    check_failure(2, |group| group.all_gather(&[0u8; 4], &mut [0; 7]), "the output has 7 elements: 4 for each of 2");
    for ends in [&[4][..], &[3, 2], &[2, 5], &[5, 4]] {
        check_failure(
            2,
            move |group| group.all_gather_parts(&mut [0u8; 4], ends),
            "are not the ends of 2 parts of 4 elements",
        );
    }
}

#[test]
fn a_difference_before_the_start_is_named() {
    let plan = |group: &Group, odd: usize, line: &str| {
        let line = if group.rank() == odd { line } else { "conv 3x3" };
        format!("version 1\n{line}\nend")
    };
    let compare = move |group: &Group, odd: usize, line: &str| {
        group.compare(&[("options", &"--lr 0.1"), ("plan", &plan(group, odd, line))])
    };
    let same = run_ranks(threads(3), move |group| compare(&group, 9, ""));
    assert_eq!(same, [Ok(()), Ok(()), Ok(())]);
    check_failure(
        3,
        move |group| compare(group, 2, "conv 5x5"),
        "plan differs: line 2 is \"conv 3x3\" on rank 0 and \"conv 5x5\" on rank 2",
    );
    check_failure(3, move |group| compare(group, 0, ""), "line 2 is \"\" on rank 0 and \"conv 3x3\" on rank 1");
    check_failure(
        2,
        |group| if group.rank() == 0 { group.compare(&[("plan", &"")]) } else { group.compare(&[]) },
        "item 0 to compare is \"plan\" on rank 0 and (nothing) on rank 1",
    );
}

#[test]
fn abort_from_any_thread_ends_all() {
    check_failure(
        3,
        |group| {
            if group.rank() == 1 {
                let group = group.clone();
                std::thread::spawn(move || group.abort(group.own_cause(CauseKind::NonFinite, "loss of step 7")));
            }
            loop {
                group.barrier()?;
            }
        },
        "met a non-finite value: loss of step 7",
    );
}

#[test]
fn leaving_early_fails_the_waiting_ranks_and_a_clean_end_fails_none() {
    let outcomes = run_ranks(threads(3), |group| {
        let result = group.barrier();
        if group.rank() == 1 { None } else { Some(result.and_then(|()| group.barrier()).unwrap_err().to_string()) }
    });
    for outcome in [&outcomes[0], &outcomes[2]] {
        let text = outcome.as_deref().unwrap();
        assert!(
            text.starts_with("rank 1 on host ") && text.contains("exited during barrier #2: it left the group"),
            "{text}"
        );
    }
    assert_eq!(run_ranks(threads(3), |group| group.barrier()), [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn a_panic_is_the_cause_for_the_others() {
    let mut groups = threads(2);
    let panics = groups.pop().unwrap();
    let thread = std::thread::spawn(move || {
        let _group = panics;
        panic!("on purpose, by the test");
    });
    let causes = run_ranks(groups, |group| group.barrier().unwrap_err());
    assert!(thread.join().is_err());
    assert_eq!((causes[0].rank, causes[0].kind), (Some(1), CauseKind::Error));
}

#[test]
fn one_number_from_each_rank() {
    let check = |ranks: usize, by: Reduce, expected: f64| {
        let values = run_ranks(threads(ranks), move |group| group.reduce(group.rank() as f64 + 1.0, by).unwrap());
        assert_eq!(values, vec![expected; ranks], "{by:?} of {ranks}");
    };
    check(1, Reduce::Sum, 1.0);
    check(1, Reduce::Mean, 1.0);
    check(4, Reduce::Sum, 10.0);
    check(4, Reduce::Mean, 2.5);
}
