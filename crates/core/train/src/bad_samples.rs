//! The samples that a run skipped because they cannot be read, those of all ranks together, each once; and how many images were
//! converted to RGB.
//!
//! A rank notes the samples of its own batches. At the end of each validation, and where a run stops, the ranks exchange
//! what they met, so that the list is the same on any number of ranks. Rank 0 keeps it as a file of the run.

use std::collections::BTreeSet;

use enmasse_comm::Group;
use enmasse_data::{BadSample, Batch, DataError};
use enmasse_wording::one_line;

use crate::TrainError;
use crate::callback::Callbacks;

/// The skipped samples of a run.
#[derive(Debug, Default)]
pub(crate) struct BadSamples {
    /// Those that all ranks know.
    known: BTreeSet<BadSample>,
    /// Those that this rank has met since the last exchange, and did not know.
    met: BTreeSet<BadSample>,
    /// How many may be skipped; `None` for any number.
    limit: Option<usize>,
    /// Images that this rank has seen converted since the last exchange.
    converted_here: u64,
    /// Images that were converted on all ranks before.
    converted: u64,
}

impl BadSamples {
    /// Begins with the samples of an earlier part of the run, which one rank has read.
    pub fn resumed(listed: BTreeSet<BadSample>) -> Self {
        BadSamples { met: listed, ..BadSamples::default() }
    }

    /// Makes more samples than `limit` an error.
    pub fn limited(self, limit: Option<usize>) -> Self {
        BadSamples { limit, ..self }
    }

    /// Notes the samples of a batch that were skipped, and its images that were converted. Returns the samples that this rank had
    /// not met. Fails if there are too many: what a rank finds alone ends the run at once, and what ranks find together at the next
    /// exchange.
    pub fn meet_batch(&mut self, batch: &Batch, callbacks: &mut Callbacks) -> Result<(), TrainError> {
        self.converted_here += batch.converted as u64;
        callbacks.on_bad_samples(&self.meet(&batch.unreadable))?;
        self.check()
    }

    /// Notes the skipped samples of a batch, and returns those that this rank had not met.
    pub fn meet(&mut self, skipped: &[BadSample]) -> Vec<BadSample> {
        // As the list has it, so that each is there once.
        let listed =
            |BadSample { name, problem }: &BadSample| BadSample { name: one_line(name), problem: one_line(problem) };
        let is_new = |sample: &BadSample| !self.known.contains(sample) && self.met.insert(sample.clone());
        skipped.iter().map(listed).filter(is_new).collect()
    }

    /// Exchanges what ranks have met, and returns the samples that this rank had not. All ranks must call it.
    pub fn exchange(&mut self, group: Option<&Group>) -> Result<Vec<BadSample>, TrainError> {
        let own = std::mem::take(&mut self.met);
        let mut learned = Vec::new();
        if let Some(group) = group {
            let mut met = [own.len() as i64, self.converted_here as i64];
            group.all_reduce(&mut met)?;
            self.converted_here = met[1] as u64;
            // Nearly always: there is nothing to exchange.
            let texts = if met[0] > 0 { group.all_gather_bytes(to_lines(&own).as_bytes())? } else { Vec::new() };
            for sample in texts.iter().flat_map(|text| from_lines(&String::from_utf8_lossy(text))) {
                if !own.contains(&sample) && self.known.insert(sample.clone()) {
                    learned.push(sample);
                }
            }
        }
        self.known.extend(own);
        self.converted += std::mem::take(&mut self.converted_here);
        Ok(learned)
    }

    /// Fails if there are more samples than may be skipped. After an [`exchange`](Self::exchange) all ranks decide alike.
    pub fn check(&self) -> Result<(), TrainError> {
        let samples = self.known.union(&self.met);
        match self.limit.filter(|&limit| samples.clone().count() > limit) {
            Some(limit) => Err(DataError::too_many_unreadable(samples, limit).into()),
            None => Ok(()),
        }
    }

    /// The images that were converted on all ranks since the last call, up to the last exchange.
    pub fn take_converted(&mut self) -> u64 {
        std::mem::take(&mut self.converted)
    }

    /// The samples that all ranks know.
    pub fn known(&self) -> &BTreeSet<BadSample> {
        &self.known
    }
}

/// One line for each sample: its name, a tab, and why it cannot be read.
pub(crate) fn to_lines(samples: &BTreeSet<BadSample>) -> String {
    let line = |BadSample { name, problem }: &BadSample| format!("{name}\t{problem}\n");
    samples.iter().map(line).collect()
}

/// Reads the output of [`to_lines`]. A line without a tab is a name alone.
pub(crate) fn from_lines(text: &str) -> BTreeSet<BadSample> {
    let sample = |line: &str| {
        // Of an editor that ends lines in another way.
        let line = line.trim_end_matches('\r');
        let (name, problem) = line.split_once('\t').unwrap_or((line, "unknown reason"));
        BadSample { name: name.to_owned(), problem: problem.to_owned() }
    };
    text.lines().map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(names: &str) -> Vec<BadSample> {
        let sample = |name: &str| BadSample { name: name.to_owned(), problem: "broken".to_owned() };
        names.split_whitespace().map(sample).collect()
    }

    #[test]
    fn ranks_exchange_what_they_met() {
        // In each round a rank meets some samples, of which some are new to it. Then it learns those of the others.
        let check = |listed: &str, rounds: &[[[&str; 3]; 2]], expected: &str| {
            let ranks = Group::threads(2).unwrap().into_iter().map(|group| {
                let listed = if group.rank() == 0 { samples(listed) } else { Vec::new() };
                let rounds: Vec<_> = rounds.iter().map(|round| round[group.rank()].map(samples)).collect();
                std::thread::spawn(move || {
                    let mut bad = BadSamples::resumed(listed.into_iter().collect());
                    for [met, new, learned] in rounds {
                        assert_eq!(bad.meet(&met), new, "rank {}", group.rank());
                        assert_eq!(bad.exchange(Some(&group)).unwrap(), learned, "rank {}", group.rank());
                    }
                    bad.known().iter().cloned().collect::<Vec<_>>()
                })
            });
            for rank in ranks.collect::<Vec<_>>() {
                assert_eq!(rank.join().unwrap(), samples(expected));
            }
        };
        check("", &[[["", "", ""], ["", "", ""]]], "");
        check("", &[[["a", "a", ""], ["", "", "a"]]], "a");
        check("", &[[["a b", "a b", ""], ["b", "b", "a"]]], "a b");
        check("", &[[["a", "a", "c"], ["c", "c", "a"]], [["c", "", "b"], ["b a", "b", ""]]], "a b c");
        check("a", &[[["a", "", "b"], ["b", "b", "a"]]], "a b");
    }

    /// Any number was skipped, so that a run could train on a tenth of its data.
    #[test]
    fn all_ranks_end_at_the_same_limit() {
        // What each rank meets; whether it fails alone, and after the exchange.
        let check = |met: [&str; 2], limit: Option<usize>, alone: [bool; 2], expected: Option<&str>| {
            let ranks = Group::threads(2).unwrap().into_iter().map(|group| {
                let met = samples(met[group.rank()]);
                let alone = alone[group.rank()];
                std::thread::spawn(move || {
                    let mut bad = BadSamples::default().limited(limit);
                    bad.meet(&met);
                    assert_eq!(bad.check().is_err(), alone, "rank {}", group.rank());
                    bad.exchange(Some(&group)).unwrap();
                    bad.check().err().map(|error| error.to_string())
                })
            });
            for rank in ranks.collect::<Vec<_>>() {
                assert_eq!(rank.join().unwrap().as_deref(), expected);
            }
        };
        check(["a b", "c"], None, [false; 2], None);
        check(["a b", "c"], Some(3), [false; 2], None);
        check(["a b", "b a"], Some(2), [false; 2], None);
        let error = |count: usize, limit: usize, names: &str| {
            format!(
                "{count} images cannot be read, and at most {limit} are skipped (1 % of the data set, at least 10): {names}; \
                 mend or remove them (enmasse data check names all), or skip any number with `on_bad_sample = substitute`"
            )
        };
        let three = error(3, 2, "a (broken), b (broken), c (broken)");
        check(["a b", "c"], Some(2), [false; 2], Some(&three));
        check(["a b c", ""], Some(2), [true, false], Some(&three));
        let four = error(4, 1, "a (broken), b (broken), c (broken) and 1 more");
        check(["a b", "c d"], Some(1), [true; 2], Some(&four));
    }

    #[test]
    fn lines_read_back() {
        let check = |name: &str, problem: &str, line: &str| {
            let sample = BadSample { name: name.to_owned(), problem: problem.to_owned() };
            assert_eq!(to_lines(&BTreeSet::from([sample])), line);
            assert_eq!(to_lines(&from_lines(line)), line);
        };
        check("a b/c.jpg", "the file is empty", "a b/c.jpg\tthe file is empty\n");
        assert_eq!(to_lines(&BTreeSet::new()), "");
        let odd = BadSample { name: "a\tb\n.jpg".to_owned(), problem: "not\nan image".to_owned() };
        let met = BadSamples::default().meet(&[odd.clone(), odd]);
        assert_eq!(to_lines(&met.into_iter().collect()), "a b .jpg\tnot an image\n");
        assert_eq!(to_lines(&from_lines("a.jpg")), "a.jpg\tunknown reason\n");
    }

    /// The last line kept it if no line feed followed, and the next reading of the list removed it.
    #[test]
    fn a_carriage_return_is_no_part_of_a_reason() {
        for text in ["a.jpg\tcut\r\n", "a.jpg\tcut\r", "a.jpg\tcut\r\r\n"] {
            assert_eq!(to_lines(&from_lines(text)), "a.jpg\tcut\n");
        }
    }
}
