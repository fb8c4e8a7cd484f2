//! A model of candle that two processes train together: each computes the gradients of its half of the batch, and the group adds them up.
//!
//! ```text
//! cargo run --release --manifest-path examples/candle/Cargo.toml
//! ```
//!
//! The program starts itself twice, trains alone with both halves, and compares the losses of all steps.

use std::error::Error;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use candle_core::{Device, Tensor, Var};
use enmasse_comm::{Group, Reduction, Rendezvous};

const RANKS: usize = 2;
const STEPS: usize = 200;
/// Samples of a step on all ranks together.
const BATCH: usize = 64;
const INPUTS: usize = 8;
const HIDDEN: usize = 32;
const LEARNING_RATE: f64 = 0.2;
/// Only the order of a sum differs, so losses differ by a few roundings of an f64.
const TOLERANCE: f64 = 1e-12;

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("RANK").is_some() {
        let group = Rendezvous::from_environment()?.join()?;
        let losses = train(&group)?;
        // One rank tells the losses, which all have.
        for loss in losses.into_iter().filter(|_| group.is_main()) {
            println!("{loss:e}");
        }
        return Ok(());
    }
    let alone = train(&Group::single())?;
    let together = start_ranks()?;
    let difference = alone.iter().zip(&together).map(|(one, two)| (one - two).abs() / one).fold(0.0, f64::max);
    println!("loss of one process:   {:.6} to {:.6}", alone[0], alone[STEPS - 1]);
    println!("loss of two processes: {:.6} to {:.6}", together[0], together[STEPS - 1]);
    println!("greatest relative difference in {STEPS} steps: {difference:.1e}");
    if together.len() != STEPS || difference > TOLERANCE || alone[STEPS - 1] > alone[0] / 10.0 {
        return Err("the losses differ, or the model has not learnt".into());
    }
    Ok(())
}

/// Trains in two processes of this program; their losses.
fn start_ranks() -> Result<Vec<f64>, Box<dyn Error>> {
    // The port is free when it is chosen. `enmasse launch` passes on the open socket instead.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let start = |rank: usize| {
        let place = [("RANK", rank.to_string()), ("WORLD_SIZE", RANKS.to_string())];
        let address = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())];
        Command::new(std::env::current_exe()?).envs(place).envs(address).stdout(Stdio::piped()).spawn()
    };
    let ranks = (0..RANKS).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut losses = vec![];
    for rank in ranks {
        let output = rank.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("a rank ended with {}", output.status).into());
        }
        for line in String::from_utf8(output.stdout)?.lines() {
            losses.push(line.parse()?);
        }
    }
    Ok(losses)
}

/// The part of one rank. Every rank begins with the same parameters, and takes the same steps.
fn train(group: &Group) -> Result<Vec<f64>, Box<dyn Error>> {
    let parameters = [
        parameter(1, (INPUTS, HIDDEN))?,
        parameter(2, (1, HIDDEN))?,
        parameter(3, (HIDDEN, 1))?,
        parameter(4, (1, 1))?,
    ];
    let each = BATCH / group.world_size();
    let mut losses = vec![];
    for step in 0..STEPS {
        let (inputs, targets) = batch(step * BATCH + group.rank() * each, each)?;
        let [first, first_bias, second, second_bias] = &parameters;
        let hidden = inputs.matmul(first)?.broadcast_add(first_bias)?.tanh()?;
        let outputs = hidden.matmul(second)?.broadcast_add(second_bias)?;
        // Divided by the whole batch, so that a sum over ranks is the mean over all samples.
        let loss = ((outputs - targets)?.sqr()?.sum_all()? / BATCH as f64)?;
        let gradients = loss.backward()?;

        // All sums are under way at a time, and each is waited for where it is needed.
        let sum = |tensor: &Tensor| -> Result<_, Box<dyn Error>> {
            Ok(group.all_reduce_owned(tensor.flatten_all()?.to_vec1::<f64>()?, Reduction::Sum))
        };
        let gradient = |parameter: &Var| sum(gradients.get(parameter).ok_or("a parameter has no gradient")?);
        let sums = parameters.iter().map(gradient).collect::<Result<Vec<_>, _>>()?;
        losses.extend(sum(&loss)?.wait()?);
        for (parameter, sum) in parameters.iter().zip(sums) {
            let gradient = Tensor::from_vec(sum.wait()?, parameter.shape(), &Device::Cpu)?;
            parameter.set(&(parameter.as_tensor() - (gradient * LEARNING_RATE)?)?)?;
        }
    }
    Ok(losses)
}

/// A number between -1 and 1 for each place, the same on every rank.
fn noise(stream: u64, place: usize) -> f64 {
    let bits = (stream << 40 ^ place as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ bits >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (bits as i64 >> 11) as f64 / (1u64 << 52) as f64
}

fn parameter(stream: u64, (rows, columns): (usize, usize)) -> candle_core::Result<Var> {
    let values: Vec<f64> = (0..rows * columns).map(|place| noise(stream, place) / 3.0).collect();
    Var::from_tensor(&Tensor::from_vec(values, (rows, columns), &Device::Cpu)?)
}

/// So many samples from one on: inputs, and a function of them that the model learns.
fn batch(start: usize, len: usize) -> candle_core::Result<(Tensor, Tensor)> {
    let inputs: Vec<f64> = (start * INPUTS..(start + len) * INPUTS).map(|place| noise(0, place)).collect();
    let targets: Vec<f64> = inputs.chunks(INPUTS).map(|x| (x[0] + x[1]).sin() - x[2] / 2.0).collect();
    Ok((Tensor::from_vec(inputs, (len, INPUTS), &Device::Cpu)?, Tensor::from_vec(targets, (len, 1), &Device::Cpu)?))
}
