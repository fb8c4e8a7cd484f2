//! The shares of training that wait for images, and for other ranks.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::{DataError, Dataset, Sharding, TrainOrder};
use enmasse_graph::Tensor;
use enmasse_image::Image;
use enmasse_train::{Callback, CallbackResult, Control, EpochRecord, TrainConfig, TrainError, Trainer, TrainingData};

/// Per rank and step. Two loader threads then make two batches ahead.
const BATCH: usize = 4;

/// Images of which a few come late.
struct Images {
    colours: Colours,
    late: Vec<Late>,
}

/// An image whose batch keeps training of a rank waiting for three times as long as the test has run before.
struct Late {
    /// An image of the second batch.
    index: usize,
    /// Images of the fourth batch, which is ordered when training asks for the second one.
    ordered: Vec<usize>,
    began: Instant,
    asked: Mutex<Option<Instant>>,
    is_asked: Condvar,
    /// How long training has waited for the image, at least.
    held: Mutex<Duration>,
}

impl Late {
    fn meet(&self, index: usize) {
        if self.ordered.contains(&index) {
            self.asked.lock().unwrap().get_or_insert_with(Instant::now);
            self.is_asked.notify_all();
        }
        if index == self.index {
            let asked = self.is_asked.wait_while(self.asked.lock().unwrap(), |asked| asked.is_none()).unwrap().unwrap();
            while asked.elapsed() < 3 * (asked - self.began) {
                std::thread::yield_now();
            }
            *self.held.lock().unwrap() = asked.elapsed();
        }
    }
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.colours.len()
    }
    fn label(&self, index: usize) -> usize {
        self.colours.label(index)
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        self.late.iter().for_each(|late| late.meet(index));
        self.colours.read(index)
    }
}

/// Keeps the shares of the last epoch: the wait for images, and that for ranks.
struct Shares([f64; 2]);

impl Callback for Shares {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.0 = [record.data_wait, record.rank_wait];
        Ok(())
    }
}

fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().linear("fc", classes)
}

#[test]
fn every_rank_knows_how_long_all_waited() {
    let folder = tempfile::tempdir().unwrap();
    let check = |ranks: usize, slow: Range<usize>| {
        let config = TrainConfig {
            epochs: 1,
            batch: Some(BATCH),
            size: Some(8),
            out: Some(folder.path().join(format!("{ranks} {slow:?}"))),
            ..TrainConfig::default()
        };
        let samples = 6 * BATCH * ranks;
        let order = TrainOrder::new(config.seed, samples, BATCH * ranks).unwrap().epoch(0);
        let began = Instant::now();
        let late = slow.map(|rank| {
            let own = Sharding::one(rank, ranks, BATCH);
            let index = order.local(1, &own)[0];
            let ordered = order.local(3, &own);
            let (asked, is_asked, held) = Default::default();
            Late { index, ordered, began, asked, is_asked, held }
        });
        let train = Arc::new(Images { colours: Colours(samples), late: late.collect() });
        let data = TrainingData::new(train.clone(), Arc::new(Colours(8)));
        let shares = enmasse_launch::spawn(ranks, |group| {
            let mut shares = Shares([f64::NAN; 2]);
            let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
            let trainer = Trainer::new(config.clone(), device).group(group).loader_threads(2);
            trainer.callback(&mut shares).fit("net", &net, &data)?;
            Ok::<_, TrainError>(shares.0)
        });
        let (shares, whole) = (shares.unwrap(), began.elapsed());
        // Training lasted no longer than the test, and waited no shorter than it was held up.
        let held = train.late.iter().map(|late| *late.held.lock().unwrap()).max().unwrap();
        let least = held.as_secs_f64() / whole.as_secs_f64();
        assert!(held > Duration::ZERO && (least..=1.0).contains(&shares[0][0]), "{least}: {shares:?}");
        assert!(shares.iter().all(|other| *other == shares[0]), "{shares:?}");
        let [_, rank_wait] = shares[0];
        assert!(if ranks == 1 { rank_wait == 0.0 } else { rank_wait > 0.0 && rank_wait < 1.0 }, "{shares:?}");
    };
    check(1, 0..1);
    check(2, 0..1);
    check(2, 1..2);
    // The greatest, not the sum.
    check(2, 0..2);
}
