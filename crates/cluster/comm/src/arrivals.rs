//! Who has joined an operation of another library, where ranks share no memory.
//!
//! Heartbeats with a long-lasting activity say how many such operations of each group a rank has begun
//! ([`crate::flight::Standing`]), so rank 0 knows it of ranks that wait, and of ranks that are stuck. A rank that has waited long asks it.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::group_path::GroupPath;
use crate::locks::{lock, wait_while};
use crate::received::take_u64;

/// How long a rank waits for an answer. It comes at once from a rank 0 that is alive.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The most late ranks that an answer names.
const MAX_LATE: usize = 256;
/// Bytes of a question.
const QUESTION: usize = 16;

/// Names a watched operation: its group, and its number in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub group: GroupPath,
    pub sequence: u64,
}

impl Question {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        [self.group.0, self.sequence].map(u64::to_le_bytes).concat()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let group = GroupPath(take_u64(&mut rest)?);
        let sequence = take_u64(&mut rest)?;
        rest.is_empty().then_some(Question { group, sequence })
    }
}

/// What rank 0 knows of the ranks but the one that asks, by their numbers in the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrivals {
    /// The number of those that have joined the operation.
    pub joined: usize,
    /// The first of those that have not. There may be others of which nothing is known.
    pub late: Vec<usize>,
}

impl Arrivals {
    /// Sorts ranks by the operations of the group that each has begun.
    pub(crate) fn of(question: Question, begun: impl Iterator<Item = (usize, u64)>) -> Self {
        let mut arrivals = Arrivals::default();
        for (rank, begun) in begun {
            match begun >= question.sequence {
                true => arrivals.joined += 1,
                false => arrivals.late.push(rank),
            }
        }
        arrivals.late.sort_unstable();
        arrivals.late.truncate(MAX_LATE);
        arrivals
    }

    /// The answer to a question, which it repeats.
    pub(crate) fn to_bytes(&self, question: Question) -> Vec<u8> {
        let numbers = [self.joined].into_iter().chain(self.late.iter().copied());
        let numbers = numbers.flat_map(|number| (number as u32).to_le_bytes());
        question.to_bytes().into_iter().chain(numbers).collect()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<(Question, Self)> {
        let (question, numbers) = bytes.split_first_chunk::<QUESTION>()?;
        let (numbers, []) = numbers.as_chunks() else { return None };
        let mut numbers = numbers.iter().map(|number| u32::from_le_bytes(*number) as usize);
        let joined = numbers.next()?;
        let late = numbers.collect::<Vec<_>>();
        let question = Question::from_bytes(question)?;
        (late.len() <= MAX_LATE).then_some((question, Arrivals { joined, late }))
    }
}

/// Where a rank that has asked waits for the answer, which another thread reads.
#[derive(Default)]
pub(crate) struct Answers {
    latest: Mutex<Option<(Question, Arrivals)>>,
    arrived: Condvar,
}

impl Answers {
    pub(crate) fn put(&self, answer: (Question, Arrivals)) {
        *lock(&self.latest) = Some(answer);
        self.arrived.notify_all();
    }

    /// The answer to this question; `None` if none comes.
    pub(crate) fn wait(&self, question: Question) -> Option<Arrivals> {
        let is_other = |latest: &mut Option<(Question, _)>| latest.as_ref().is_none_or(|(of, _)| *of != question);
        let mut latest = wait_while(&self.arrived, lock(&self.latest), TIMEOUT, is_other);
        // The next time rank 0 may know more.
        latest.take_if(|(of, _)| *of == question).map(|(_, arrivals)| arrivals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_round_trip() {
        let group = GroupPath::default().child(4).unwrap();
        let question = Question { group, sequence: 1 << 40 };
        assert_eq!(Question::from_bytes(&question.to_bytes()), Some(question));
        for length in [0, 8, 15, 17, 24] {
            assert_eq!(Question::from_bytes(&[1; 24][..length]), None, "{length}");
        }
        let check = |late: Vec<usize>, expected: bool| {
            let arrivals = Arrivals { joined: 7, late };
            let bytes = arrivals.to_bytes(question);
            assert_eq!(Arrivals::from_bytes(&bytes), expected.then_some((question, arrivals)));
            assert_eq!(Arrivals::from_bytes(&bytes[1..]), None);
        };
        check(vec![], true);
        check(vec![3, 9], true);
        check(vec![1; MAX_LATE], true);
        check(vec![1; MAX_LATE + 1], false);
    }

    #[test]
    fn an_answer_is_taken_once() {
        let question = Question { group: GroupPath::default(), sequence: 2 };
        let answers = Answers::default();
        let arrivals = Arrivals::of(question, [(3, 2), (2, 1), (1, 0), (4, 9)].into_iter());
        assert_eq!(arrivals, Arrivals { joined: 2, late: vec![1, 2] });
        answers.put((question, arrivals.clone()));
        assert_eq!(answers.wait(question), Some(arrivals));
        answers.put((Question { sequence: 3, ..question }, Arrivals::default()));
        assert_eq!(answers.wait(question), None);
    }
}
