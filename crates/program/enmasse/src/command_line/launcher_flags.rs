//! Flags of `train` from scripts written for PyTorch. They repeat a launcher's variables, or replace them. An address,
//! a rank and a world size together are complete: they take precedence over the environment, and a local rank has no
//! effect beside them. An incomplete set must agree with the environment: a contradiction is an error.

use std::ffi::OsString;

use clap::{Arg, ArgMatches, value_parser};
use enmasse::devices::AUTO;
use enmasse_launch::{LOCAL_RANK, LaunchedRank, MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE};
use enmasse_train::{Devices, LayeredConfig, RunConfig, SettingSource};

use crate::command_line::arguments::{count, option};
use crate::command_line::settings;
use crate::failure::{Failure, usage};
use crate::ranks::automatic;
use crate::ranks::launched::Launched;

pub const HEADING: &str = "Known from PyTorch's scripts";

/// The definitions of the flags.
pub fn arguments() -> [Arg; 6] {
    let flags = [
        option("device", "cpu|cuda")
            .help("What a rank computes on: cpu, or cuda")
            .long_help("What a rank computes on: cpu; cuda, as --devices gpu:1; cuda:N, as --devices gpu:N,; 0,1 as --devices gpu:0,1; or auto"),
        option("gpus", "N")
            .allow_negative_numbers(true)
            .help("GPUs, as Lightning's flag: a number, or a list")
            .long_help("GPUs, as Lightning's flag: N, as --devices gpu:N; -1, as --devices gpu:all; 0,1 as --devices gpu:0,1; 0: CPUs"),
        count("world-size", "N", "Ranks on this machine")
            .alias("world_size")
            .long_help(
                "Ranks on this machine: on one GPU each if so many work, otherwise as --devices cpu:N. In a launched rank: what WORLD_SIZE \
                 must be",
            ),
        option("dist-url", "URL")
            .aliases(["dist_url", "init-method", "init_method"])
            .help("Where launched ranks meet")
            .long_help(
                "Where launched ranks meet: env:// (MASTER_ADDR and MASTER_PORT) or tcp://HOST:PORT. With --rank and \
                 --world-size it stands for any launcher\n[also: --init-method]",
            ),
        option("rank", "R")
            .allow_negative_numbers(true)
            .value_parser(value_parser!(i64))
            .help("This process's rank, from 0")
            .long_help("This process's rank, from 0; -1: what the launcher says"),
        option("local-rank", "N")
            .alias("local_rank")
            .allow_negative_numbers(true)
            .value_parser(value_parser!(i64))
            .help("What LOCAL_RANK must be")
            .long_help("What LOCAL_RANK must be; -1: nothing"),
    ];
    // The last occurrence counts, as for every other flag.
    flags.map(|flag| {
        let name = flag.get_id().clone();
        flag.help_heading(HEADING).overrides_with(name)
    })
}

/// The given flags.
#[derive(Clone, Debug, Default)]
pub struct LauncherFlags {
    device: Option<String>,
    gpus: Option<String>,
    world_size: Option<usize>,
    dist_url: Option<String>,
    rank: Option<usize>,
    local_rank: Option<usize>,
}

impl LauncherFlags {
    /// Reads the flags from a command line.
    pub fn of(matches: &ArgMatches) -> Self {
        LauncherFlags {
            device: matches.get_one("device").cloned(),
            gpus: matches.get_one("gpus").cloned(),
            world_size: matches.get_one("world-size").copied(),
            dist_url: matches.get_one("dist-url").cloned(),
            rank: said(matches.get_one("rank")),
            local_rank: said(matches.get_one("local-rank")),
        }
    }

    /// This process's place in a launched job, if it has one and the flags agree with it. Without a launcher,
    /// `--world-size` becomes the number of ranks in `layers`, on what `gpus` takes of that number.
    pub fn place(
        &self,
        environment: impl Fn(&str) -> Option<OsString>,
        gpus: impl Fn(&RunConfig, usize) -> Option<Devices>,
        layers: &mut LayeredConfig,
    ) -> Result<Option<Launched>, Failure> {
        self.take_device(layers)?;
        let address = self.dist_url.as_deref().map(meeting_point).transpose()?.flatten();
        let said = |name: &str| match (name, &address, self.rank, self.world_size) {
            (MASTER_ADDR, Some((host, _)), ..) => Some(host.into()),
            (MASTER_PORT, Some((_, port)), ..) => Some(port.to_string().into()),
            (RANK, _, Some(rank), Some(_)) => Some(rank.to_string().into()),
            (WORLD_SIZE, _, Some(_), Some(world_size)) => Some(world_size.to_string().into()),
            _ => None,
        };
        if address.is_some() && self.rank.is_some() && self.world_size.is_some() {
            if let Some(rank) = self.local_rank {
                return Err(usage!(
                    "--local-rank {rank}: has no effect with --dist-url, --rank and --world-size; leave it out"
                ));
            }
            let place = LaunchedRank::from_lookup(said).map_err(Failure::usage)?;
            return Ok(place.map(|place| Launched::by_arguments(place, environment)));
        }
        // The flags fill in variables that the environment lacks.
        let lookup = |name: &str| environment(name).filter(|value| !value.is_empty()).or_else(|| said(name));
        let launched = Launched::find(lookup, layers, automatic::visible)?;
        match &launched {
            Some(launched) => self.check_place(&launched.place, address)?,
            None => self.stand_alone(gpus, layers)?,
        }
        Ok(launched)
    }

    /// Puts `--device` or `--gpus` into `layers`, as `--devices`. For CPUs the number of ranks stays as it is, also where the environment, a file or
    /// a saved run names GPUs.
    fn take_device(&self, layers: &mut LayeredConfig) -> Result<(), Failure> {
        let (flag, asked) = match (&self.device, &self.gpus) {
            (None, None) => return Ok(()),
            (Some(device), None) => ("--device", device),
            (None, Some(gpus)) => ("--gpus", gpus),
            (Some(device), Some(gpus)) => {
                return Err(usage!("--device {device} and --gpus {gpus}: both name devices; leave one of them out"));
            }
        };
        let refuse = |reason: &str| Err(usage!("{flag} {asked}: {reason}"));
        let devices = match asked.split_once(':') {
            _ if flag == "--gpus" => match Devices::of_gpus(asked) {
                Some(devices) => devices,
                None => return refuse(Devices::GPUS),
            },
            None if asked == "cpu" => None,
            None if asked == "cuda" || asked == "gpu" => Some("gpu:1".to_owned()),
            None if asked == AUTO => Some(asked.clone()),
            Some(("cuda", number)) if number.parse::<usize>().is_ok() => Some(format!("gpu:{number},")),
            None if asked.split(',').all(|number| number.parse::<usize>().is_ok()) => {
                Some(if asked.contains(',') { format!("gpu:{asked}") } else { format!("gpu:{asked},") })
            }
            Some(("cpu", _)) => return refuse("must be cpu alone; set the number of ranks with --devices cpu:N"),
            _ => return refuse("must be cpu, cuda, cuda:N, a list of GPUs such as 0,1, or auto"),
        };
        let given = given_devices(layers);
        let agrees = match (&devices, given) {
            (_, None) => true,
            (None, Some(given)) => given.kind == settings::default_kind(),
            (Some(devices), Some(given)) => *devices == given.to_string(),
        };
        match (devices, given) {
            (_, Some(given)) if !agrees => refuse(&format!("--devices {given} says otherwise; leave one of them out")),
            (Some(devices), None) => Ok(layers.argument("devices", &devices)?),
            (Some(_), Some(_)) => Ok(()),
            (None, _) => {
                layers.name_devices(format!("{flag} {asked}"));
                layers.device_kind(settings::default_kind());
                Ok(())
            }
        }
    }

    fn check_place(&self, place: &LaunchedRank, address: Option<(String, u16)>) -> Result<(), Failure> {
        let LaunchedRank { rank, world_size, local_rank, .. } = *place;
        let refuse = |flag: String, truth: String| {
            Err(usage!("{flag}: this process's launcher has set {truth}; leave the flag out"))
        };
        match (self.world_size, self.local_rank) {
            (Some(given), _) if given != world_size => {
                return refuse(format!("--world-size {given}"), format!("{WORLD_SIZE}={world_size}"));
            }
            _ if self.rank.is_some_and(|given| given != rank) => {
                return refuse(format!("--rank {}", self.rank.unwrap_or_default()), format!("{RANK}={rank}"));
            }
            (_, Some(given)) if given != local_rank => {
                let truth = format!("{LOCAL_RANK}={local_rank} ({RANK}={rank})");
                return refuse(format!("--local-rank {given}"), truth);
            }
            _ => {}
        }
        match (address, &place.master) {
            (Some((host, port)), Some(master)) if (&host, port) != (&master.0, master.1) => {
                let truth = format!("{MASTER_ADDR}={} and {MASTER_PORT}={}", master.0, master.1);
                refuse(format!("--dist-url tcp://{host}:{port}"), truth)
            }
            _ => Ok(()),
        }
    }

    /// The process has no launcher.
    fn stand_alone(
        &self,
        gpus: impl Fn(&RunConfig, usize) -> Option<Devices>,
        layers: &mut LayeredConfig,
    ) -> Result<(), Failure> {
        let missing = format!("no launcher has set {RANK} and {WORLD_SIZE}");
        if let Some(rank) = self.rank {
            return Err(usage!(
                "--rank {rank}: {missing}; give --dist-url tcp://HOST:PORT and --world-size N as well, or leave the flag out"
            ));
        }
        if let Some(rank) = self.local_rank {
            return Err(usage!(
                "--local-rank {rank}: {missing}; start the ranks with enmasse launch, or leave the flag out"
            ));
        }
        if let Some(url) = self.dist_url.as_deref().filter(|url| url.starts_with("tcp://")) {
            return Err(usage!(
                "--dist-url {url}: {missing}; give each of its ranks --rank R and --world-size N, or leave the flag out"
            ));
        }
        let Some(ranks) = self.world_size else { return Ok(()) };
        let given = given_devices(layers);
        let own = given.filter(|given| !given.automatic).map(|given| Devices::new(&given.kind, ranks));
        // The program's choice is GPUs, if there are enough.
        let on_gpus = || gpus(layers.config(), ranks).filter(|_| layers.given_device_kind().is_none());
        let devices = own.or_else(on_gpus).unwrap_or_else(|| Devices::new(settings::default_kind(), ranks)).to_string();
        match given {
            Some(given) if given.automatic && ranks == 1 => Ok(()),
            Some(given) if given.asked().is_some_and(|asked| asked != ranks) => Err(usage!(
                "--world-size {ranks}: --devices {given} asks for another number of ranks; leave one of them out"
            )),
            _ => {
                layers.name_devices(format!("--world-size {ranks}"));
                Ok(layers.argument("devices", &devices)?)
            }
        }
    }
}

/// The devices of `--devices` on the command line.
fn given_devices(layers: &LayeredConfig) -> Option<&Devices> {
    let is_given = layers.source("devices") == Some(&SettingSource::CommandLine);
    layers.config().program.devices.as_ref().filter(|_| is_given)
}

/// The scripts' default, -1, means that the flag was not given.
fn said(rank: Option<&i64>) -> Option<usize> {
    rank.and_then(|&rank| usize::try_from(rank).ok())
}

/// The host and port of `tcp://HOST:PORT`; `None` for `env://`.
fn meeting_point(url: &str) -> Result<Option<(String, u16)>, Failure> {
    let split = |address: &str| {
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        (!host.is_empty()).then(|| (host.to_owned(), port))
    };
    match url.strip_prefix("tcp://").map(split) {
        None if url == "env://" => Ok(None),
        Some(Some(address)) => Ok(Some(address)),
        _ => Err(usage!("--dist-url {url}: must be env:// or tcp://HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Command;
    use enmasse_train::DeviceSelection;

    use super::*;
    use crate::command_line::arguments::{given, settings};

    /// The place and the devices that follow from flags and variables; or the message.
    fn place(flags: &str, variables: &[(&str, &str)]) -> Result<(Option<LaunchedRank>, Option<String>), String> {
        let line = std::iter::once("train").chain(flags.split_whitespace());
        let command = Command::new("train").args(settings("devices")).args(arguments());
        let matches = command.try_get_matches_from(line).unwrap();
        let mut layers = LayeredConfig::new();
        for (name, value) in given(&matches) {
            layers.argument(name, &value).unwrap();
        }
        let environment = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let place = LauncherFlags::of(&matches).place(environment, |_, _| None, &mut layers);
        place
            .map(|launched| (launched.map(|launched| launched.place), layers.config().get("devices")))
            .map_err(|failure| failure.message().to_owned())
    }

    const LAUNCHED: [(&str, &str); 6] = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
    ];

    #[test]
    fn without_a_launcher() {
        let check = |flags: &str, devices: Option<&str>| {
            assert_eq!(place(flags, &[]), Ok((None, devices.map(str::to_owned))), "{flags}");
        };
        check("", None);
        check("--device cpu --dist-url env:// --local_rank -1", None);
        check("--world-size 3", Some("cpu:3"));
        check("--world_size 3 --devices cpu:3", Some("cpu:3"));
        check("--world-size 2 --world-size 1", Some("cpu:1"));
        let refused = |flags: &str, expected: &str| assert_eq!(place(flags, &[]).unwrap_err(), expected);
        let two = "--world-size 3: --devices cpu:2 asks for another number of ranks; leave one of them out";
        refused("--devices cpu:2 --world-size 3", two);
        let url = "--dist-url tcp://h:1: no launcher has set RANK and WORLD_SIZE; give each of its ranks \
                   --rank R and --world-size N, or leave the flag out";
        refused("--dist-url tcp://h:1 --world-size 2", url);
        let rank = "--local-rank 0: no launcher has set RANK and WORLD_SIZE; start the ranks with enmasse launch, \
                    or leave the flag out";
        refused("--local_rank 0", rank);
        let rank = "--rank 1: no launcher has set RANK and WORLD_SIZE; give --dist-url tcp://HOST:PORT and --world-size N as \
                    well, or leave the flag out";
        refused("--rank 1", rank);
        refused("--rank 1 --dist-url tcp://h:1", rank);
        for url in ["tcp://h", "tcp://:1", "tcp://h:0", "tcp://h:65536", "file:///a", "env"] {
            refused(&format!("--dist-url {url}"), &format!("--dist-url {url}: must be env:// or tcp://HOST:PORT"));
        }
    }

    /// As a launcher does; it took CPUs.
    #[test]
    fn a_number_of_ranks_took_no_gpus() {
        let check = |flags: &str, there: usize, expected: &str| {
            let line = ["train"].into_iter().chain(flags.split_whitespace());
            let matches = Command::new("train").args(settings("devices")).args(arguments()).get_matches_from(line);
            let mut layers = LayeredConfig::new();
            given(&matches).for_each(|(name, value)| layers.argument(name, &value).unwrap());
            let gpus = |_: &RunConfig, ranks: usize| {
                let selection = DeviceSelection::List((0..ranks).collect());
                (ranks <= there).then(|| Devices { selection, ..Devices::new("gpu", 1) })
            };
            LauncherFlags::of(&matches).place(|_| None, gpus, &mut layers).unwrap();
            assert_eq!(layers.config().get("devices").as_deref(), Some(expected), "{flags}");
        };
        check("--world-size 3", 8, "gpu:0,1,2");
        check("--world-size 1", 8, "gpu:0,");
        check("--world-size 3 --device auto", 8, "gpu:0,1,2");
        check("--world-size 3", 2, "cpu:3");
        check("--world-size 3 --device cpu", 8, "cpu:3");
        check("--world-size 3 --devices cpu:3", 8, "cpu:3");
        check("--world-size 2 --devices gpu:2", 8, "gpu:2");
    }

    #[test]
    fn a_gpu_of_a_saved_run_or_a_variable_was_taken_in_spite_of_device_cpu() {
        let check = |flags: &str, variable: Option<&str>, saved: &str, expected: Option<&str>| {
            let line = ["train"].into_iter().chain(flags.split_whitespace());
            let matches = Command::new("train").args(arguments()).try_get_matches_from(line).unwrap();
            let mut layers = LayeredConfig::new();
            layers.environment(variable.map(|value| ("ENMASSE_DEVICES".into(), value.into()))).unwrap();
            LauncherFlags::of(&matches).place(|_| None, |_, _| None, &mut layers).unwrap();
            layers.saved_run(&format!("devices = \"{saved}\""), Path::new("run")).unwrap();
            assert_eq!(layers.config().get("devices").as_deref(), expected, "{flags} {variable:?} {saved}");
        };
        check("", None, "gpu:2", Some("gpu:2"));
        check("--device cpu", None, "gpu:2", Some("cpu:2"));
        check("--device cpu", None, "gpu:0,3,4", Some("cpu:3"));
        check("--device cpu", None, "gpu:all", None);
        check("--device cpu", None, "auto", None);
        check("--device cpu", None, "cpu:3", Some("cpu:3"));
        check("--device cpu", Some("gpu:1"), "gpu:2", Some("cpu:1"));
        check("--device cpu --world-size 3", Some("gpu:1"), "gpu:2", Some("cpu:3"));
        check("--device cuda:1", Some("cpu:1"), "cpu:2", Some("gpu:1,"));
    }

    #[test]
    fn contradicting_the_launcher_is_an_error() {
        let check = |flags: &str| {
            let (place, devices) = place(flags, &LAUNCHED).unwrap();
            assert_eq!((place.map(|place| (place.rank, place.world_size)), devices), (Some((1, 2)), None), "{flags}");
        };
        check("");
        check("--world-size 2 --local_rank 1 --dist-url env:// --device cpu");
        check("--local-rank=1 --dist-url tcp://127.0.0.1:29500");
        check("--rank 1 --world-size 2 --local-rank=-1");
        check("--rank=-1 --init-method env://");
        let refused = |flags: &str, says: &str| {
            let expected = format!("{flags}: this process's launcher has set {says}; leave the flag out");
            assert_eq!(place(flags, &LAUNCHED).unwrap_err(), expected);
        };
        refused("--world-size 4", "WORLD_SIZE=2");
        refused("--local-rank 0", "LOCAL_RANK=1 (RANK=1)");
        refused("--rank 0", "RANK=1");
        let address = "MASTER_ADDR=127.0.0.1 and MASTER_PORT=29500";
        refused("--dist-url tcp://127.0.0.1:29501", address);
        refused("--dist-url tcp://elsewhere:29500", address);
    }

    #[test]
    fn an_address_stands_in_for_the_environment() {
        let (place, _) = place("--dist-url tcp://node-1:23456", &LAUNCHED[..2]).unwrap();
        assert_eq!(place.unwrap().master, Some(("node-1".to_owned(), 23456)));
    }

    #[test]
    fn address_rank_and_world_size_override_every_environment() {
        let slurm =
            [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_NODELIST", "n[2-1]")];
        for variables in [&[][..], &LAUNCHED, &slurm] {
            for url in ["--init-method", "--init_method", "--dist-url", "--dist_url"] {
                let flags = format!("{url} tcp://node-1:23456 --rank 4 --world-size 6 --local_rank -1");
                let (place, devices) = place(&flags, variables).unwrap();
                let LaunchedRank { rank, world_size, master, .. } = place.unwrap();
                assert_eq!((rank, world_size, master), (4, 6, Some(("node-1".to_owned(), 23456))), "{flags}");
                assert_eq!(devices, None);
            }
            let error = place("--init-method tcp://h:1 --rank 2 --world-size 2", variables).unwrap_err();
            assert_eq!(error, "RANK is 2 but WORLD_SIZE is 2: RANK must be less than WORLD_SIZE");
            let error = place("--dist-url tcp://h:1 --rank 1 --world-size 2 --local-rank 1", variables).unwrap_err();
            let expected = "--local-rank 1: has no effect with --dist-url, --rank and --world-size; leave it out";
            assert_eq!(error, expected);
        }
        // env:// has only the address.
        let address = &LAUNCHED[4..];
        let (place, _) = place("--dist-url env:// --rank 1 --world-size 2", address).unwrap();
        assert_eq!(place.unwrap().master, Some(("127.0.0.1".to_owned(), 29500)));
    }

    #[test]
    fn a_gpu_is_named_by_devices() {
        for device in ["0,x", "cuda:x", "mps"] {
            let expected = format!("--device {device}: must be cpu, cuda, cuda:N, a list of GPUs such as 0,1, or auto");
            assert_eq!(place(&format!("--device {device}"), &[]).unwrap_err(), expected);
            assert_eq!(place(&format!("--device {device}"), &LAUNCHED).unwrap_err(), expected);
        }
        let check = |flags: &str, expected: &str| {
            for variables in [&[][..], &LAUNCHED] {
                assert_eq!(place(flags, variables).map(|(_, devices)| devices), Ok(Some(expected.into())), "{flags}");
            }
        };
        check("--device cuda", "gpu:1");
        check("--device gpu --devices gpu:1", "gpu:1");
        check("--device cuda:1", "gpu:1,");
        check("--device 0", "gpu:0,");
        check("--device 2,0", "gpu:2,0");
        check("--device auto", "auto");
        check("--device cpu --devices cpu:1", "cpu:1");
        // Lightning's flag.
        check("--gpus -1", "gpu:all");
        check("--gpus=-1", "gpu:all");
        check("--gpus 2", "gpu:2");
        check("--gpus 0,1", "gpu:0,1");
        check("--gpus 3,", "gpu:3,");
        check("--gpus 0 --devices cpu:1", "cpu:1");
        check("--gpus 2 --devices gpu:2", "gpu:2");
        for gpus in ["-2", "x", "", "1,,2", "0,x"] {
            let line = format!("--gpus={gpus}");
            let expected = format!("--gpus {gpus}: must be a number of GPUs, -1 for all, or a list such as 0,1");
            assert_eq!(place(&line, &[]).unwrap_err(), expected);
        }
        let both = "--device cuda and --gpus 2: both name devices; leave one of them out";
        assert_eq!(place("--device cuda --gpus 2", &[]).unwrap_err(), both);
        let other = "--gpus -1: --devices cpu:1 says otherwise; leave one of them out";
        assert_eq!(place("--gpus -1 --devices cpu:1", &[]).unwrap_err(), other);
        let without = |flags: &str| place(flags, &[]).map(|(_, devices)| devices.unwrap_or_default());
        assert_eq!(without("--device auto --world-size 1"), Ok("auto".into()));
        assert_eq!(without("--device auto --world-size 2"), Ok("cpu:2".into()));
        for (device, devices) in [("cuda", "cpu:1"), ("cpu", "gpu:1"), ("cpu", "auto")] {
            let expected = format!("--device {device}: --devices {devices} says otherwise; leave one of them out");
            assert_eq!(place(&format!("--device {device} --devices {devices}"), &[]).unwrap_err(), expected);
        }
        let cpu = "--device cpu:2: must be cpu alone; set the number of ranks with --devices cpu:N";
        assert_eq!(place("--device cpu:2", &[]).unwrap_err(), cpu);
    }
}
