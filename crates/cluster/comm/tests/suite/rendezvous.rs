//! Forming groups: the ranks that are admitted, those that are refused with their reasons, and that nothing remains.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::common::{DEADLINE, groups, join_all, joined, rendezvous, rendezvous_over, run_all, run_ranks};
use enmasse_comm::{CauseKind, Group, GroupEvent, JoinError, Rendezvous, Token, TransportChoice};

/// Ways in which ranks of several processes share data.
const PROCESSES: [&str; 4] = ["shared", "tcp", "pairs", "cyclic"];

/// The errors of the ranks, in order.
fn errors(ranks: Vec<Rendezvous>) -> Vec<String> {
    join_all(ranks).into_iter().map(|result| result.unwrap_err().to_string()).collect()
}

fn assert_contains(text: &str, expected: &str) {
    assert!(text.contains(expected), "{text:?} lacks {expected:?}");
}

#[test]
fn a_group_of_one_needs_no_connection() {
    let group = Rendezvous::tcp("tcp://10.9.8.7:1", 0, 1).unwrap().join().unwrap();
    let mut data = [1.5f32];
    let mut all = [0];
    group.all_reduce(&mut data).unwrap();
    group.broadcast(&mut data, 0).unwrap();
    group.all_gather(&[7i64], &mut all).unwrap();
    group.barrier().unwrap();
    group.compare(&[("plan", &"any")]).unwrap();
    assert_eq!((data, all, group.all_gather_bytes(b"x").unwrap()), ([1.5], [7], vec![b"x".to_vec()]));
    // SAFETY: the data outlives the call.
    unsafe { group.all_reduce_start(data.as_mut_ptr(), 1) }.wait().unwrap();
}

#[test]
fn addresses_are_checked() {
    let check = |address: &str, expected: &str| {
        assert_contains(&Rendezvous::tcp(address, 0, 2).unwrap_err().to_string(), expected);
    };
    check("127.0.0.1:5", "does not begin with tcp://");
    check("tcp://127.0.0.1", "the port is missing");
    check("tcp://:5", "the host is missing");
    check("tcp://h:70000", "the port is not a number");
    assert_contains(&Rendezvous::tcp("tcp://h:5", 2, 2).unwrap_err().to_string(), "rank 2 of 2 is impossible");
}

#[test]
fn beyond_loopback_a_token_is_required() {
    for rank in 0..2 {
        let error = Rendezvous::tcp("tcp://192.0.2.1:29500", rank, 2).unwrap().join().unwrap_err();
        assert_contains(&error.to_string(), "192.0.2.1:29500 is reachable from other machines");
        assert_contains(&error.to_string(), "set ENMASSE_TOKEN");
    }
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    let mut rank = Rendezvous::tcp("tcp://127.0.0.1:5", 0, 2).unwrap();
    rank.listener = Some(everywhere);
    assert!(matches!(rank.join(), Err(JoinError::TokenRequired { .. })));
}

#[test]
fn equal_tokens_join_and_others_are_refused() {
    for transport in [TransportChoice::Auto, TransportChoice::Tcp] {
        let mut ranks = rendezvous(3, transport);
        for rank in &mut ranks {
            rank.token = Token::from_text("a secret of all the ranks").ok();
        }
        let groups = join_all(ranks).into_iter().map(Result::unwrap).collect();
        assert_eq!(run_ranks(groups, |group| group.barrier()), [Ok(()), Ok(()), Ok(())]);
    }

    // A socket that listens on every address: the others find rank 0's other sockets at the address where they reached
    // this one.
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    let address = format!("127.0.0.1:{}", everywhere.local_addr().unwrap().port());
    let mut ranks = rendezvous(2, TransportChoice::Tcp);
    ranks[0].listener = Some(everywhere);
    for rank in &mut ranks {
        rank.address = address.clone();
        rank.token = Some(Token::from_bytes([3; 32]));
    }
    let groups = join_all(ranks).into_iter().map(Result::unwrap).collect();
    assert_eq!(run_ranks(groups, |group| group.barrier()), [Ok(()), Ok(())]);

    check_stray(
        |rank| rank.token = Some(Token::from_bytes([9; 32])),
        "rank 2 and the rank at 127.0.0.1:",
        "hold different tokens: give all ranks the same ENMASSE_TOKEN",
    );
}

/// Any user of the machine knew the secret of ranks that were given none.
#[test]
fn the_secret_on_loopback_was_a_public_constant() {
    let public = Token::from_bytes(blake3::derive_key("enmasse without token", b""));
    check_stray(|rank| rank.token = Some(public.clone()), "hold different tokens", "");

    let mut ranks = rendezvous(2, TransportChoice::Auto);
    ranks[1].token = Some(Token::of_user().unwrap());
    let groups = join_all(ranks).into_iter().map(Result::unwrap).collect();
    assert_eq!(run_ranks(groups, |group| group.barrier()), [Ok(()), Ok(())]);
}

#[test]
fn a_token_file_is_private_and_gone_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    // A file that a killed job has left.
    std::fs::write(&path, [9; 32]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut ranks = rendezvous(3, TransportChoice::Auto);
    for rank in &mut ranks {
        rank.token_file = Some(path.clone());
    }
    let groups: Vec<Group> = join_all(ranks).into_iter().map(Result::unwrap).collect();
    assert_eq!(run_ranks(groups, |group| group.barrier()), [Ok(()), Ok(()), Ok(())]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn missing_ranks_are_named_to_every_rank() {
    // The others must have joined before the deadline, which may be too short for them on a busy machine.
    let texts = [1, 4, 16].map(Duration::from_secs).into_iter().map(|limit| {
        let mut ranks = rendezvous(5, TransportChoice::Auto);
        for rank in &mut ranks {
            rank.join_timeout = limit;
        }
        ranks.remove(4);
        ranks.remove(2);
        errors(ranks)
    });
    let expected = "ranks 2, 4 of 5 did not join at 127.0.0.1:";
    let all: Vec<_> =
        texts.map_while(|texts| (!texts.iter().all(|text| text.contains(expected))).then_some(texts)).collect();
    assert!(all.len() < 3, "{all:?} lack {expected:?}");
}

#[test]
fn a_missing_rank_0_is_reported() {
    let address = format!("127.0.0.1:{}", test_support::free_port());
    let mut rank = Rendezvous::tcp(&format!("tcp://{address}"), 1, 2).unwrap();
    rank.join_timeout = Duration::from_millis(200);
    assert_contains(&errors(vec![rank])[0], &format!("rank 1 has not reached rank 0 at {address}"));
}

/// Joins each rank in a thread of its own; the results arrive in the order in which the ranks end.
fn join_each(ranks: Vec<Rendezvous>, sender: &Sender<Result<Group, JoinError>>) {
    for rank in ranks {
        let sender = sender.clone();
        std::thread::spawn(move || sender.send(rank.join()));
    }
}

/// A fourth rank, started differently, takes the place of rank 2 of three. It learns why it is refused, and then the
/// right rank 2 comes.
fn check_stray(change: impl Fn(&mut Rendezvous), expected: &str, too: &str) {
    let mut ranks = rendezvous(3, TransportChoice::Auto);
    let late = ranks.remove(2);
    let mut stray = Rendezvous::tcp(&format!("tcp://{}", late.address), 2, 3).unwrap();
    change(&mut stray);
    let (sender, receiver) = channel();
    ranks.push(stray);
    join_each(ranks, &sender);
    let text = receiver.recv_timeout(DEADLINE).unwrap().unwrap_err().to_string();
    assert_contains(&text, expected);
    assert_contains(&text, too);
    join_each(vec![late], &sender);
    // Nobody leaves before all have joined.
    let groups: Vec<_> = (0..3).map(|_| receiver.recv_timeout(DEADLINE).unwrap().unwrap()).collect();
    assert!(groups.iter().all(|group| group.world_size() == 3));
}

#[test]
fn strays_are_refused() {
    let refused = "rank 2 was refused at 127.0.0.1:";
    check_stray(|rank| rank.job = "another".into(), refused, "it belongs to another job");
    check_stray(|rank| rank.attempt = 1, refused, "it belongs to attempt 1, and attempt 0 is running");
    check_stray(|rank| rank.world_size = 4, refused, "was started with a world size of 4, rank 0 with 3");
    check_stray(|rank| rank.rank = 1, "rank 1 was refused at 127.0.0.1:", "rank 1 has joined already");
}

#[test]
fn strangers_learn_nothing_and_disturb_no_rank() {
    let ranks = rendezvous(2, TransportChoice::Tcp);
    let address = ranks[0].listener.as_ref().unwrap().local_addr().unwrap();
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut rude = TcpStream::connect(address).unwrap();
    rude.write_all(&[b'x'; 4096]).unwrap();
    let groups = join_all(ranks).into_iter().map(Result::unwrap).collect();
    assert_eq!(run_ranks(groups, |group| group.barrier()), [Ok(()), Ok(())]);
    rude.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut heard = vec![];
    let _ = rude.read_to_end(&mut heard);
    assert_eq!(heard, []);
    drop(silent);
}

/// Two connections of another program to the port at which rank 0 will listen, and what is said of them.
fn strangers(ranks: &[Rendezvous]) -> (Vec<TcpStream>, String) {
    let address = ranks[0].listener.as_ref().unwrap().local_addr().unwrap();
    let mut strangers: Vec<_> = (0..2).map(|_| TcpStream::connect(address).unwrap()).collect();
    strangers.iter_mut().for_each(|stranger| stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap());
    (strangers, format!("refused at {address}: 2 connections from 127.0.0.1, of another program"))
}

/// Observers come later than the strangers, and hear of them even so.
#[test]
fn refused_strangers_were_not_told_to_the_rank_that_listened() {
    for transport in [TransportChoice::Auto, TransportChoice::Tcp] {
        let ranks = rendezvous(3, transport);
        let (_strangers, expected) = strangers(&ranks);
        let groups = join_all(ranks).into_iter().map(Result::unwrap).collect();
        let told = run_ranks(groups, |group| {
            let (sender, receiver) = channel();
            let sender = std::sync::Mutex::new(sender);
            group.observe(move |event| {
                if let GroupEvent::Refused(refused) = event {
                    sender.lock().unwrap().send(refused.to_string()).unwrap();
                }
            });
            group.barrier().unwrap();
            receiver.try_iter().collect::<Vec<_>>()
        });
        assert_eq!(told, [vec![expected], vec![], vec![]]);
    }
}

/// The ranks that are missing may be those that were refused. The first rank that ends its wait tells all.
#[test]
fn refused_strangers_are_named_where_ranks_are_missing() {
    let limit = Duration::from_secs(2);
    for [first, second] in [[limit, DEADLINE], [DEADLINE, limit]] {
        let mut ranks = rendezvous(3, TransportChoice::Auto);
        let (_strangers, expected) = strangers(&ranks);
        ranks.remove(2);
        (ranks[0].join_timeout, ranks[1].join_timeout) = (first, second);
        for text in errors(ranks) {
            assert_contains(&text, "rank 2 of 3 did not join at 127.0.0.1:");
            assert_contains(&text, &format!("with this address? ({expected})"));
        }
    }
}

#[test]
fn a_rank_that_fails_while_joining_tells_the_others() {
    let mut ranks = rendezvous(2, TransportChoice::Auto);
    ranks[1].transport = TransportChoice::Shared;
    let began = std::time::Instant::now();
    for text in errors(ranks) {
        assert_contains(&text, "the transport is auto on rank 0 and shared on rank 1");
    }
    assert!(began.elapsed() < DEADLINE / 2, "they waited for the deadline");
}

#[test]
fn a_cause_reaches_every_rank_over_every_transport() {
    for transport in PROCESSES {
        for culprit in 0..3 {
            let causes = run_ranks(groups(3, transport), move |group| {
                // A rank may still be leaving the barrier when another one fails.
                let result = group.barrier();
                if group.rank() == culprit {
                    group.abort(group.own_cause(CauseKind::NonFinite, "loss of step 9"));
                }
                result.and_then(|()| group.all_reduce(&mut vec![0f32; 100_000])).unwrap_err()
            });
            for cause in &causes {
                assert_eq!(
                    (cause.rank, cause.kind, &*cause.message),
                    (Some(culprit), CauseKind::NonFinite, "loss of step 9")
                );
                assert_eq!(cause, &causes[0]);
            }
        }
    }
}

#[test]
fn ranks_out_of_step_are_named_over_every_transport() {
    for transport in PROCESSES {
        for culprit in 1..4 {
            let causes = run_ranks(groups(4, transport), move |group| {
                // A rank may still be leaving the barrier when another one fails.
                let sum = || group.all_reduce(&mut vec![0f32; if group.rank() == culprit { 99_999 } else { 100_000 }]);
                group.barrier().and_then(|()| sum()).unwrap_err()
            });
            for cause in &causes {
                let expected = format!(
                    "rank 0 runs all_reduce(sum) of 100000 f32 #2 while rank {culprit} runs all_reduce(sum) of 99999 f32 #2"
                );
                assert_contains(&cause.to_string(), &expected);
                assert_eq!(cause, &causes[0]);
            }
        }
    }
}

#[test]
fn leaving_early_is_named_over_every_transport() {
    for transport in PROCESSES {
        for leaver in 0..3 {
            let outcomes = run_ranks(groups(3, transport), move |group| {
                let result = group.barrier();
                if group.rank() == leaver { None } else { result.and_then(|()| group.barrier()).err() }
            });
            for cause in outcomes.into_iter().enumerate().filter(|(rank, _)| *rank != leaver).map(|(_, cause)| cause) {
                let cause = cause.expect("a waiting rank did not notice the leaver");
                assert_eq!((cause.rank, cause.kind), (Some(leaver), CauseKind::Exited), "{cause}");
            }
        }
    }
}

#[test]
fn many_groups_live_side_by_side() {
    let groups: Vec<_> = (0..3).map(|_| joined(2, TransportChoice::Auto)).collect();
    let sums = run_all(groups.into_iter().flatten().collect(), |group: Group| {
        let mut sum = [group.rank() as i64 + 1];
        group.all_reduce(&mut sum).map(|()| sum)
    });
    assert_eq!(sums, vec![Ok([3]); 6]);
}

#[test]
fn every_rank_knows_how_data_travels() {
    let check = |transport: &'static str, n: usize, expected: &str| {
        for ways in run_ranks(groups(n, transport), |group| group.ways().to_vec()) {
            assert_eq!(ways, [expected], "{transport}");
        }
    };
    check("threads", 2, "ranks are threads, which share memory");
    check("shared", 2, "ranks share memory");
    check("tcp", 3, "ranks exchange data over TCP");
    check("pairs", 2, "ranks share memory");
    check("cyclic", 2, "ranks exchange data over TCP");
    check("all but one", 4, "ranks share memory on 2 nodes, which exchange data over TCP");
    assert!(Group::single().ways().is_empty());
}

/// Without an address for connections between nodes.
#[test]
fn shared_memory_alone_does_not_reach_another_node() {
    let mut ranks = rendezvous_over(3, "shared");
    ranks[2].node = Some("another".into());
    let expected = "rank 2 is on another machine, in another container or of another user than rank 0";
    errors(ranks).iter().for_each(|text| assert_contains(text, expected));
}
