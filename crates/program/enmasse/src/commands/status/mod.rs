//! `enmasse status`: what each GPU of this machine does and for whom, and the runs that train here. Nothing is opened or locked.

mod running;

use std::io::IsTerminal;
use std::time::Duration;

use clap::{ArgMatches, Command};
use enmasse::devices::{GpuProcess, GpuStatus, gpus};
use enmasse_system::writer::{self, Stream};
use enmasse_wording::{counted, duration, one_line, speed};
use serde_json::{Value, json};

use crate::command_line::arguments::{option, switch};
use crate::failure::Failure;
use crate::output::Output;
use running::{Running, running};

/// To the upper left corner, and erase everything from there.
const REDRAW: &str = "\x1b[H\x1b[J";

/// The command line of `enmasse status`.
pub fn command() -> Command {
    Command::new("status")
        .about("What each GPU does, and for whom, and the runs on this machine")
        .long_about(
            "What each GPU of this machine does: how busy and how warm it is, its memory, and the processes that compute on it, as \
             NVIDIA's management library says; and the runs that train on this machine: their folders, epochs, speed and ranks. Runs of \
             other users are not seen.",
        )
        .arg(
            option("watch", "SECONDS")
                .value_parser(|text: &str| {
                    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
                    seconds.map(Duration::from_secs_f64).ok_or("must be a number of seconds, from 0.1 to 86400")
                })
                .help("Show it again and again; in a terminal at the same place"),
        )
        .arg(switch("json", "Print a JSON object each time"))
}

pub fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let is_json = matches.get_flag("json");
    let Some(&pause) = matches.get_one::<Duration>("watch") else {
        let mut output = Output::new(is_json);
        show(&mut output);
        return output.finish();
    };
    let redraws = !is_json && std::io::stdout().is_terminal();
    loop {
        if redraws {
            writer::put(Stream::Output, REDRAW.to_owned());
        }
        show(&mut Output::new(is_json));
        if writer::finish().is_some() {
            // Nobody reads any more.
            return Output::new(is_json).finish();
        }
        std::thread::sleep(pause);
    }
}

fn show(output: &mut Output) {
    let (gpus, runs) = (gpus(), running());
    if output.is_json() {
        let gpus: Vec<Value> = gpus.iter().flatten().map(gpu_record).collect();
        let runs: Vec<Value> = runs.iter().map(Running::record).collect();
        output.json(json!({ "event": "status", "gpus": gpus, "runs": runs }));
        return;
    }
    match &gpus {
        Some(gpus) if !gpus.is_empty() => gpus.iter().for_each(|gpu| output.text(gpu_line(gpu))),
        _ => output.text("gpu:   none that NVIDIA's driver shows here; ranks compute on CPUs"),
    }
    runs.iter().for_each(|run| output.text(run.line()));
    if runs.is_empty() {
        output.text("run:   none on this machine");
    }
}

fn gpu_line(gpu: &GpuStatus) -> String {
    let GpuStatus { number, name, utilization, memory, temperature, processes } = gpu;
    let gibibytes = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 30));
    let known = [
        utilization.map(|share| format!("{:.0} % busy", share * 100.0)),
        memory.map(|[used, all]| format!("{} of {} GiB", gibibytes(used), gibibytes(all))),
        temperature.map(|degrees| format!("{degrees} °C")),
        processes.as_ref().map(|processes| match processes.is_empty() {
            true => "idle".to_owned(),
            false => processes.iter().map(owner).collect::<Vec<_>>().join(", "),
        }),
    ];
    let known: Vec<String> = known.into_iter().flatten().collect();
    format!("gpu {number}: {name}, {}", known.join(", "))
}

/// `python of ada (pid 4242) with 8192 MiB`.
fn owner(process: &GpuProcess) -> String {
    let GpuProcess { pid, name, user, bytes } = process;
    let name = name.as_deref().map_or("a process".to_owned(), one_line);
    let user = user.as_ref().map_or(String::new(), |user| format!(" of {}", one_line(user)));
    let memory = bytes.map_or(String::new(), |bytes| format!(" with {} MiB", bytes >> 20));
    format!("{name}{user} (pid {pid}){memory}")
}

fn gpu_record(gpu: &GpuStatus) -> Value {
    let GpuStatus { number, name, utilization, memory, temperature, processes } = gpu;
    let process = |process: &GpuProcess| {
        let GpuProcess { pid, name, user, bytes } = process;
        json!({ "pid": pid, "name": name, "user": user, "bytes": bytes })
    };
    json!({
        "number": number,
        "name": name,
        "utilization": utilization,
        "used_bytes": memory.map(|[used, _]| used),
        "bytes": memory.map(|[_, all]| all),
        "temperature": temperature,
        "processes": processes.as_ref().map(|processes| processes.iter().map(process).collect::<Vec<_>>()),
    })
}

impl Running {
    /// `run: runs/a, resnet18, epoch 3 of 10, 1200 images/s, 4 ranks, 5 min left, pid 4242`.
    fn line(&self) -> String {
        let asked = self.epochs_asked.map_or(String::new(), |asked| format!(" of {asked}"));
        let known = [
            Some(self.run.display().to_string()),
            self.model.clone(),
            Some(format!("epoch {}{asked}", self.epochs + 1)),
            self.images_per_second.and_then(speed),
            self.ranks.map(|ranks| counted(ranks, "rank")),
            self.seconds_left.map(|seconds| format!("{} left", duration(seconds))),
            Some(format!("pid {}", self.pid)),
        ];
        format!("run:   {}", known.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }

    fn record(&self) -> Value {
        json!({
            "run": self.run.display().to_string(),
            "pid": self.pid,
            "model": self.model,
            "epochs": self.epochs,
            "epochs_asked": self.epochs_asked,
            "images_per_second": self.images_per_second,
            "ranks": self.ranks,
            "seconds_left": self.seconds_left,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_is_known() {
        let gpu = GpuStatus {
            number: 1,
            name: "NVIDIA H200".to_owned(),
            utilization: Some(0.37),
            memory: Some([(12 << 30) + (1 << 29), 141 << 30]),
            temperature: Some(64),
            processes: Some(vec![
                GpuProcess { pid: 7, name: Some("python".into()), user: Some("ada".into()), bytes: Some(8 << 30) },
                GpuProcess { pid: 8, name: None, user: None, bytes: None },
            ]),
        };
        let check = |gpu: &GpuStatus, expected: &str| assert_eq!(gpu_line(gpu), expected);
        let of = "python of ada (pid 7) with 8192 MiB, a process (pid 8)";
        check(&gpu, &format!("gpu 1: NVIDIA H200, 37 % busy, 12.5 of 141.0 GiB, 64 °C, {of}"));
        let idle = GpuStatus { utilization: None, temperature: None, processes: Some(Vec::new()), ..gpu };
        check(&idle, "gpu 1: NVIDIA H200, 12.5 of 141.0 GiB, idle");
        let run = Running {
            run: "runs/a".into(),
            pid: 9,
            model: Some("resnet18".to_owned()),
            epochs: 2,
            epochs_asked: Some(10),
            images_per_second: None,
            ranks: Some(4),
            seconds_left: None,
        };
        assert_eq!(run.line(), "run:   runs/a, resnet18, epoch 3 of 10, 4 ranks, pid 9");
    }
}
