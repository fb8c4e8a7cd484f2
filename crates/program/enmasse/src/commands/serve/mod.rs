//! `enmasse serve RUN…`: predictions over HTTP, in batches that grow with the load.
//!
//! One thread holds all connections. Threads decode images beside the device, whose thread computes what is there (`queue.rs`). An image
//! has a place in the queue from the end of its request to its prediction, so what waits is bounded, and a stop waits for it.

mod metrics;
mod model;
mod queue;
mod routes;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use enmasse_train::{PreparationBuffers, TrainError};
use enmasse_wording::one_line;
use serde_json::json;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use self::metrics::Metrics;
use self::model::{Compiled, Named};
use self::queue::Model;
use self::routes::{Limits, Served, Server};
use super::predict;
use super::weights::OF_A_RUN;
use crate::command_line::arguments::{self, ONE_DEVICE, count, option};
use crate::command_line::settings::{self, Ranks};
use crate::failure::{Failure, failed, usage};
use crate::output::{Output, say, warn};
use crate::ranks::Rank;
use crate::ranks::interrupt::Interrupts;
use crate::web::connections;

/// The settings that apply to it.
const SERVING: &str = "\
    model prefix size channels mean std interpolation crop_pct devices threads loader_threads precision isa exact convert_rgb \
    exif_transpose cache_dir";

const EXAMPLES: &str = "\
Examples:
  enmasse serve runs/flowers
  curl --data-binary @rose.jpg http://127.0.0.1:8000/predict
  enmasse serve flowers=runs/a birds=runs/b --port 9000
  enmasse serve hf:timm/resnet18.a1_in1k";

/// Connections at once.
const MAX_CONNECTIONS: usize = 512;

/// The command line of `enmasse serve`.
pub fn command() -> Command {
    let runs = Arg::new("runs").value_name("RUN").required(true).num_args(1..).value_parser(arguments::path);
    Command::new("serve")
        .about("Predictions over HTTP: images in, JSON out")
        .after_help(EXAMPLES)
        .arg(
            runs.help("Run folders, or weights as for predict; NAME=RUN gives a name")
                .long_help("Run folders, or weights as for predict. The first answers POST /predict, and each POST /models/NAME/predict. NAME is that of the folder or the file; NAME=RUN gives another"),
        )
        .arg(option("host", "ADDRESS").default_value("127.0.0.1").help("The address to listen on"))
        .arg(
            option("port", "P")
                .value_parser(clap::value_parser!(u16))
                .default_value("8000")
                .help("The port; 0 takes any that is free"),
        )
        .arg(count("batch-size", "N", "Images computed at once, at most [default: 8]"))
        .arg(count("queue", "N", "Images in work, at most; then 429 [default: 256]"))
        .arg(count("max-body", "MIB", "MiB of a request, at most [default: 32]"))
        .arg(count("timeout", "SECONDS", "Time for a request and its answer [default: 30]"))
        .arg(count("top", "K", "Classes to tell of each image [default: 5]"))
        .arg(predict::temperature().help("Divide the logits by T [default: as fitted by eval]"))
        .args(arguments::settings_with(SERVING, &[OF_A_RUN, ONE_DEVICE].concat()))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let loading = Interrupts::watch()?;
    let count = |name: &str, default: usize| matches.get_one(name).copied().unwrap_or(default);
    let runs: Vec<&PathBuf> = matches.get_many("runs").into_iter().flatten().collect();
    let named = runs.into_iter().map(|run| model::named(run)).collect::<Result<Vec<Named>, Failure>>()?;
    let is_taken = |(place, own): (usize, &Named)| named[..place].iter().any(|other| other.name == own.name);
    if let Some((_, Named { name, path })) = named.iter().enumerate().find(|&named| is_taken(named)) {
        return Err(usage!(
            "{name}: two models have this name; give one of them another, as in other={}",
            path.display()
        ));
    }
    let layers = settings::layers(matches)?;
    let listener = listen(matches)?;
    let address = listener.local_addr().map_err(|error| failed!("cannot listen: {error}"))?;
    let form = (count("batch-size", 8), count("top", 5), matches.get_one("temperature").copied());
    let models = named.iter().map(|named| model::open(named, layers.clone(), form));
    let models = models.collect::<Result<Vec<Compiled>, Failure>>()?;
    settings::tell_of_idle_devices(&layers);
    let threads = Rank::alone().loader_threads(&settings::finish(layers, Ranks::One)?.train);

    let served = named.iter().zip(&models).map(|(named, model)| served(named, model)).collect();
    let metrics = Arc::new(Metrics::new(named.iter().map(|named| named.name.as_str())));
    let models = models.into_iter().map(|model| Box::new(model) as Box<dyn Model>).collect();
    let jobs = queue::start(models, metrics.clone()).map_err(|error| failed!("cannot start a thread: {error}"))?;
    let limits = Limits {
        queue: count("queue", 256),
        body: count("max-body", 32) << 20,
        time: Duration::from_secs(count("timeout", 30) as u64),
    };
    let server = Server::new(served, jobs, metrics, limits);

    let (stop, stopped) = oneshot::channel();
    drop(loading);
    let _stopping = Interrupts::watch_server(move || {
        say("stopping: requests that were taken are answered; ask again to end at once");
        let _ = stop.send(());
    })?;
    if !address.ip().is_loopback() {
        warn(format_args!("{address} can be reached from other machines: nothing is encrypted, and anyone may ask"));
    }
    let mut output = Output::new(false);
    output.text(format_args!("listening on http://{address}; Ctrl-C stops it"));
    output.finish()?;
    let end = async {
        // An error would mean that nobody can stop it any more.
        let _ = stopped.await;
        server.drain().await;
    };
    let busy = connections::busy("application/json", &format!("{}\n", routes::error("too many connections")));
    let serve = connections::serve(listener, server.router(), (MAX_CONNECTIONS, &busy), end);
    let runtime =
        Builder::new_current_thread().enable_all().thread_name("decode").max_blocking_threads(threads).build();
    let ended = runtime.and_then(|runtime| runtime.block_on(serve));
    ended.map_err(|error| failed!("cannot serve: {error}"))
}

fn listen(matches: &ArgMatches) -> Result<TcpListener, Failure> {
    let host = matches.get_one::<String>("host").map_or("", String::as_str);
    let port = matches.get_one::<u16>("port").copied().unwrap_or_default();
    TcpListener::bind((host, port)).map_err(|error| {
        failed!("cannot listen on {host}, port {port}: {error}: choose another --port, or 0 for any that is free")
    })
}

/// A model as clients see it.
fn served(named: &Named, model: &Compiled) -> Served {
    thread_local!(static BUFFERS: RefCell<PreparationBuffers> = RefCell::default());
    let classifier = model.classifier.clone();
    let reading = model.reading;
    let about = json!({
        "name": named.name, "model": classifier.model, "task": classifier.kind().name(), "classes": classifier.classes,
        "size": classifier.transform.size
    });
    let prepare = move |bytes: &[u8], name: &str| {
        let prepared = BUFFERS.with_borrow_mut(|buffers| classifier.prepare(bytes, name, reading, buffers));
        prepared.map_err(|error: TrainError| one_line(&error.to_string()))
    };
    Served { name: named.name.clone(), prepare: Arc::new(prepare), about }
}
