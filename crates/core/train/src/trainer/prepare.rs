//! Prepares a run for its first step: data, plans that all ranks agree on, a program with its weights, and
//! the files of rank 0.

use std::borrow::Cow;

use enmasse_comm::{BufferBytes, Group, ShardMap};
use enmasse_data::{DecodePool, Sharding, TrainLoader, skip_limit};
use enmasse_device::{Device, Hosting, Program};
use enmasse_graph::{Arena, Plans};
use enmasse_system::machine::ResidentMemory;

use super::diverged::LastCheckpoint;
use super::evaluate::EvaluationInput;
use super::head::HeadPhase;
use super::{Session, Trainer, is_unfinished};
use crate::agreement::{broadcast_state, broadcast_states, compare_devices, compare_setup, compare_weights};
use crate::all_reduce::{ChosenAlgorithm, check_group};
use crate::bad_samples::BadSamples;
use crate::callback::Plateau;
use crate::checkpoint::CallbackStates;
use crate::config::ByteCount;
use crate::memory::{ProcessMemory, RankMemory, check_device_memory, check_memory, excess, program_memory};
use crate::pace::Paces;
use crate::parts::{deliver, elsewhere, lost_residuals};
use crate::plans::{Compilation, initialize, training_metrics};
use crate::resumption::rescheduled;
use crate::run_writer::{RunFiles, RunWriter};
use crate::staged::StagedProgram;
use crate::survivor::Survivor;
use crate::tensor_parallel::TensorParallelProgram;
use crate::trace::{Tracer, at};
use crate::tuning::tune;
use crate::weights::write_tensors;
use crate::whitening::{whiten, whitened};
use crate::{
    Artifact, Callback, ConfigError, LrSchedule, ModelFn, OnBadSample, Position, Preparation, RankKind, RankPlace,
    Recomputation, Resumed, RunConfig, ScheduleKind, Scores, Started, TargetKind, TrainConfig, TrainError,
    TrainingData, Tuning, load_pretrained,
};

impl Session {
    /// The session, and on rank 0 what writes the files of the run.
    pub(super) fn prepare(
        trainer: &Trainer,
        run: &RunConfig,
        model: &ModelFn,
        data: &TrainingData,
    ) -> Result<(Self, RunFiles), TrainError> {
        let config = &run.train;
        let device = trainer.device.as_ref();
        let group = trainer.group.as_ref();
        group.map_or(Ok(()), |group| check_group(group, run))?;
        let (rank, world_size) = group.map_or((0, 1), |group| (group.rank(), group.world_size()));
        let objective = trainer.objective.of_data(data, config)?;
        let task = objective.task();
        let monitor = objective.monitor(task.as_ref(), config)?;
        let is_measured = task.figures().iter().any(|figure| monitor.name == format!("val_{}", figure.name));
        if is_measured && data.validation.len().saturating_mul(task.outputs()) > Scores::MAX_VALUES {
            let reason = format!(
                "needs all outputs of a validation, and they are more than {}: use `monitor = val_loss`",
                Scores::MAX_VALUES
            );
            return Err(ConfigError::Value { what: format!("monitor {}", monitor.name), reason }.into());
        }
        data.parts().try_for_each(|(part, dataset)| data.check_labels(task.as_ref(), part, dataset.as_ref()))?;
        let place = config.rank_place(rank, world_size)?;
        let map = ShardMap::new(config.shard_count(world_size), place.replicas())?;
        let shards = map.shards();
        let sharding = Sharding { local: map.local(place.replica()), shards, batch: config.batch_per_shard(shards) };
        let pool = DecodePool::new(trainer.decoders())?.timeout(config.timeout(world_size));
        let preparation = Preparation::of(config, data);
        let objective = objective.taught(config, &preparation, Some(data))?;
        let transform = preparation.train.clone();
        let sampler = config.training_sampler(data.train.as_ref());
        let images = data.train.clone();
        let seed = config.seed;
        let skips = config.bad_samples() != OnBadSample::Error;
        let train = TrainLoader::with_sampler(&pool, images, transform, sharding.clone(), seed, sampler)?
            .drop_last(config.drop_last)?
            .in_memory(device.host_memory())
            .skip_unreadable(skips)
            .with_targets(task.target().values())
            .unite_targets(task.unites_targets());
        let evaluation = EvaluationInput {
            pool,
            transform: preparation.evaluation.clone(),
            sharding: sharding.clone(),
            memory: device.host_memory(),
            skips,
            task: task.clone(),
            images: data.validation.clone(),
        };
        let mut validation = evaluation.loader(&data.validation)?;
        if let Some(limit) = config.limit_val_batches {
            let batches = limit.of(validation.batches());
            validation = validation.limited(batches);
        }

        let compilation = Compilation {
            config,
            preparation: &preparation,
            model,
            objective: &objective,
            outputs: task.outputs(),
            target: &device.target(),
        };
        let compile = |config: &TrainConfig| Compilation { config, ..compilation }.plans_of_ranks(&map);
        let compile_parts = |config: &TrainConfig| Compilation { config, ..compilation }.parts(shards);
        let own = |config: &TrainConfig| match compile_parts(config)?.into_iter().nth(place.plans()) {
            Some(own) => Ok(own),
            None => Ok::<_, TrainError>(compile(config)?.of_rank(rank)),
        };
        let mut plans = compile(config)?;
        let hosting = Hosting::of(map, place.replica());
        let process = ProcessMemory {
            resident: ResidentMemory::gather(),
            ranks: match config.rank_kind() {
                RankKind::Thread => world_size,
                RankKind::Process => 1,
            },
            exchange: group.map_or(BufferBytes::default(), Group::buffer_bytes),
            decoders: [trainer.decoders(), data.reading_bytes(&evaluation.pool)?],
            kept: data.kept_bytes(),
            ahead: data.ahead_bytes(),
            loading: loaded_at_a_time(config, &plans),
        };
        let batches = train.batch_bytes().saturating_add(validation.batch_bytes());
        let mut settled = config.clone();
        if config.recompute == Recomputation::Auto {
            let mut budget = plans.bytes();
            loop {
                match excess(device, group, &plans.clone().of_rank(rank), &hosting, batches, &process)? {
                    0 => break,
                    excess => budget = budget.saturating_sub(excess),
                }
                settled.recompute = Recomputation::Within(ByteCount(budget as u64));
                let Ok(fitting) = compile(&settled) else {
                    // The check of memory below names a batch that fits.
                    settled.recompute = Recomputation::All;
                    match compile(&settled) {
                        Ok(all) => plans = all,
                        Err(_) => settled.recompute = Recomputation::No,
                    }
                    break;
                };
                plans = fitting;
            }
        }
        let config = &settled;
        let mut parts = compile_parts(config)?;
        if let Some(group) = group {
            compare_devices(group, device, run.program.share_devices)?;
        }
        let (mut writer, saved) = match rank {
            0 if !config.keeps_nothing() => {
                RunWriter::open(run, data, &preparation, &trainer.attempt, (&objective, &monitor))
                    .map(|(writer, saved)| (Some(writer), saved))?
            }
            _ => (None, None),
        };
        let tuning = agree_on_algorithms(config, device, group, writer.as_mut(), &mut plans)?;
        let all_reduce = ChosenAlgorithm::choose(config.all_reduce, device, group, &mut plans);
        if let Some(group) = group {
            compare_setup(group, run, data, &plans)?;
            if !parts.is_empty() {
                let texts: String = parts.iter().filter_map(|plans| Some(plans.train.as_ref()?.to_string())).collect();
                group.compare(&[("plans of the parts", &texts)])?;
            }
        }
        let replicas = group.filter(|_| !parts.is_empty()).map(|group| place.replicas_in(group)).transpose()?;
        let peers = replicas.as_ref().or(group);
        let head = match config.fine_tune {
            // A head is fitted to classes; others are trained by steps.
            Some(_) if task.target() == TargetKind::Class => {
                let features = Compilation { config, ..compilation }.features(&sharding)?;
                Some(HeadPhase::new(&plans, features, data, task.loss(config))?)
            }
            _ => None,
        };
        let plans = plans.of_rank(rank);
        let loading = process.loading.max(head.as_ref().map_or(0, HeadPhase::bytes));
        let process = ProcessMemory { loading, ..process };
        let program = program_memory(device, parts.get(place.plans()).unwrap_or(&plans), &hosting)?;
        let program_with = |batch: usize| {
            program_memory(device, &own(&TrainConfig { batch: Some(batch), ..config.clone() })?, &hosting)
        };
        check_device_memory(device, program, sharding.batch, &program_with)?;
        let on_device = device.free_memory()?.is_some();
        let memory = RankMemory::new(program, on_device, batches, &process);
        let with_batch = |batch: usize| {
            let batches = (batches as u128 * batch as u128 / sharding.batch as u128) as usize;
            Ok(RankMemory::new(program_with(batch)?, on_device, batches, &process).total())
        };
        check_memory(group, memory.total(), &process, sharding.batch, &with_batch)?;
        let cut = parts.first().and_then(|plans| plans.evaluate.tensor_parallel.clone());
        let summing = group.map(|group| all_reduce.map_or(group.clone(), |chosen| group.summing_by(chosen.algorithm)));
        let mut program: Box<dyn Program> = match (group.filter(|_| !parts.is_empty()), place) {
            (Some(group), RankPlace::Stage(place)) => {
                Box::new(StagedProgram::new(device, plans, parts, place, group.clone())?)
            }
            (Some(group), RankPlace::Tensor(place)) => {
                Box::new(TensorParallelProgram::new(device, plans, parts.swap_remove(0), place, group.clone())?)
            }
            (None, _) => device.compile(plans, summing)?,
        };
        initialize(program.as_mut(), config.seed)?;
        // Rank 0 may read files into a part of it, and pass on the whole.
        program.gather_state(false)?;
        let mut pretrained = None;
        let mut position = Position::default();
        let mut states = CallbackStates::new();
        let mut resumed_from = None;
        let mut dropped = None;
        match (&mut writer, saved) {
            (Some(writer), Some(checkpoint)) => {
                let origin = writer.paths().root().display().to_string();
                let entries = checkpoint.entries().iter();
                let listed: Vec<_> = entries.map(|entry| (entry.name.as_str(), &entry.shape[..])).collect();
                let read = |index: usize| Ok(Cow::Owned(checkpoint.read(index)?));
                let loaded = write_tensors(program.as_mut(), &listed, &read, &origin);
                let (before, now) = (checkpoint.meta.size, preparation.evaluation.size);
                loaded.map_err(|error| match error {
                    TrainError::Weights(reason) if before != now => TrainError::Resume(format!(
                        "the run was trained with `size = {before}`, and its weights do not fit `size = {now}`: {reason}"
                    )),
                    other => other,
                })?;
                position = Position::from_meta(&checkpoint.meta, training_metrics(program.plans()));
                writer.check_best(&mut position, &checkpoint.meta.best.metric);
                states = checkpoint.meta.callbacks.clone();
                dropped = lost_residuals(program.plans(), group, &checkpoint);
                resumed_from = Some(checkpoint);
            }
            _ if rank == 0 => {
                whiten(program.as_mut(), &evaluation, &data.train, &preparation.normalization)?;
                let load = |weights| load_pretrained(program.as_mut(), weights, &config.prefix);
                pretrained = config.first_weights()?.map(load).transpose()?;
            }
            _ => {}
        }
        let mut has_previous = [i64::from(writer.as_ref().is_some_and(|writer| writer.has_previous(config)))];
        if let Some(group) = group {
            group.broadcast(&mut has_previous, 0)?;
            // Weights of a fresh run are a pure function of the seed, and only compared; values from a
            // file or from data come from rank 0.
            position = position.broadcast(group)?;
            if position.is_resumed() || config.begins_with_weights() || !whitened(program.as_ref()).is_empty() {
                broadcast_state(group, program.as_mut())?;
                states = broadcast_states(group, &states)?;
            }
            if position.is_resumed() {
                deliver(group, program.as_mut(), resumed_from.as_ref())?;
            }
        }
        if let Some(teacher) = &objective.teacher {
            teacher.load(program.as_mut())?;
        }
        if let (Some(peers), Some(group)) = (peers, group) {
            let resumed = position.is_resumed();
            match program.parts() {
                Some(parts) => {
                    compare_weights(peers, parts, resumed)?;
                    compare_weights(group, program.as_mut(), resumed)?;
                }
                None => compare_weights(peers, program.as_mut(), resumed)?,
            }
        }
        // From here on a request to stop ends the run with a checkpoint. What comes before it leaves nothing.
        trainer.callbacks.control.requests.heed(true);
        let mut files = match &mut writer {
            // A finished run stays as it is.
            Some(writer) if is_unfinished(config, &position) => {
                writer.begin(run, trainer.origins.as_ref(), data, &position, preparation.train.size())?
            }
            _ => RunFiles::default(),
        };
        let survivor = group.map_or(Ok(None), |group| Survivor::of_run(writer.as_ref(), group))?;
        let limit = match config.bad_samples() {
            OnBadSample::Skip => Some(skip_limit(data.train.len() + data.validation.len())),
            OnBadSample::Error | OnBadSample::Substitute => None,
        };
        let earlier = writer.as_ref().map(|writer| writer.unreadable.clone()).unwrap_or_default();
        let bad_samples = BadSamples::resumed(earlier).limited(limit);
        let resumed = position.is_resumed().then_some(Resumed { epoch: position.epoch, samples: position.samples });
        let own_schedule = LrSchedule::new(config, shards).steps_per_epoch(epoch_steps(config, &train));
        let (schedule, plateau) = match (&trainer.schedule, config.schedule) {
            (Some(own), _) => (own.clone(), None),
            (None, ScheduleKind::Plateau) => {
                let plateau = Plateau::new(config, &own_schedule, &monitor);
                (plateau.lowering(own_schedule), Some(plateau))
            }
            (None, _) => (own_schedule.into(), None),
        };
        files.callbacks.extend(plateau.map(|plateau| Box::new(plateau) as Box<dyn Callback>));
        let session = Session {
            program,
            train,
            validation,
            memory,
            evaluation,
            sharding,
            map,
            place,
            cut,
            replicas,
            all_reduce,
            preparation,
            tuning,
            pretrained,
            schedule,
            sampler: trainer.sampler.clone(),
            head: head.filter(|_| position.epoch == 0),
            position,
            monitor,
            states,
            resumed,
            lost_residuals: dropped,
            bad_samples,
            paces: Paces::new(&map, &place, group),
            tracer: Tracer::new(config.trace_steps.unwrap_or(0)),
            stopping: false,
            saving: false,
            last_checkpoint: match resumed {
                None => LastCheckpoint::Missing,
                Some(_) if has_previous == [1] => LastCheckpoint::Unproven { earlier: true },
                Some(_) => LastCheckpoint::Resumed,
            },
            epoch_end: None,
            has_set_weights: false,
            survivor,
            writer,
        };
        Ok((session, files))
    }

    /// Tells loggers and callbacks what is known before the first step.
    pub(super) fn announce(
        &mut self,
        trainer: &mut Trainer,
        run: &RunConfig,
        data: &TrainingData,
    ) -> Result<(), TrainError> {
        let lost_states = trainer.callbacks.load_states(std::mem::take(&mut self.states))?;
        let (plans, writer) = (self.program.plans(), self.writer.as_ref());
        let changes = writer.map_or(&[][..], |writer| &writer.changes);
        let count = |names: &dyn Fn(&str) -> bool| {
            plans.state.iter().filter(|tensor| names(&tensor.name)).map(|tensor| tensor.shape.elements()).sum()
        };
        let is_parameter = |name: &str| {
            let slot = plans.find(name).map(|tensor| tensor.slot.arena);
            slot == Some(Arena::Parameters)
        };
        let trained = |name: &str| {
            let plan = plans.train.iter().flat_map(|plan| &plan.values);
            is_parameter(name) && plan.into_iter().any(|value| value.name.strip_prefix("gradient.") == Some(name))
        };
        let started = Started {
            model: trainer.config.model.clone(),
            parameters: count(&is_parameter),
            trainable: count(&trained),
            data: data.layout.name(),
            task: data.task,
            normalization: self.preparation.normalization.clone(),
            size: self.preparation.train.size(),
            augmentation: self.preparation.train.to_string(),
            classes: self.evaluation.task.classes().to_vec(),
            train_samples: data.train.len(),
            dropped_samples: if self.sampler.is_some() { 0 } else { self.train.dropped() },
            validation_samples: data.validation.len(),
            epoch_steps: [epoch_steps(&trainer.config, &self.train), self.train.batches()],
            evaluated_samples: self.validation.samples(),
            test_samples: data.test.as_ref().map_or(0, |test| test.len()),
            batch: self.sharding.batch,
            global_batch: self.sharding.global_batch(),
            world_size: self.place.parts() * self.place.replicas(),
            shards: self.map.shards(),
            device: trainer.device.name(),
            loader_threads: trainer.decoders(),
            memory_bytes: self.memory.total(),
            memory: self.memory,
            cut: self.cut.clone(),
            recomputed: plans.train.as_ref().and_then(|plan| plan.recomputed.clone()),
            all_reduce: self.all_reduce,
            tuning: self.tuning.clone(),
            pretrained: self.pretrained.as_ref().map(ToString::to_string),
            run: self.run_folder(),
            resumed: self.resumed,
            optimizer_step: self.position.optimizer_step,
            unreadable: writer.map_or(Vec::new(), |writer| writer.unreadable.iter().cloned().collect()),
            changes: changes.to_vec(),
            rescheduled: rescheduled(changes, &trainer.config, self.map.shards(), &self.position),
            lost_best: writer.and_then(|writer| writer.lost_best.clone()),
            lost_records: writer.map_or(0, |writer| writer.lost_records),
            lost_residuals: self.lost_residuals.take(),
            lost_states: if writer.is_some() { lost_states } else { Vec::new() },
        };
        trainer.callbacks.loggers.start(&started, run)?;
        if let (Some(writer), None) = (writer, self.resumed) {
            trainer.callbacks.control.artifacts.push((Artifact::Chart, writer.paths().class_distribution()));
        }
        trainer.callbacks.on_fit_start(&started)
    }
}

/// The steps of an epoch in the configured order.
fn epoch_steps(config: &TrainConfig, train: &TrainLoader) -> usize {
    config.limit_train_batches.map_or(train.batches(), |limit| limit.of(train.batches()))
}

/// Bytes that are in memory at a time while weights are loaded, before the first step: a tensor of a checkpoint or from another
/// rank, or the whole file of `--weights`.
fn loaded_at_a_time(config: &TrainConfig, plans: &Plans) -> usize {
    let state = plans.state.iter().chain(elsewhere(plans));
    let largest = state.map(|tensor| tensor.shape.elements() * size_of::<f32>()).max().unwrap_or(0);
    match config.first_weights().ok().flatten() {
        _ if config.resume.is_on() => largest,
        Some(file) => std::fs::metadata(file).map_or(largest, |file| largest.max(file.len() as usize)),
        None => 0,
    }
}

/// Tunes on rank 0, if the configuration requests it, and brings every rank's plans to its choices. `writer` is rank
/// 0's: it knows the choices of a resumed run, and keeps the new ones.
fn agree_on_algorithms(
    config: &TrainConfig,
    device: &dyn Device,
    group: Option<&Group>,
    writer: Option<&mut RunWriter>,
    plans: &mut Plans,
) -> Result<Option<Tuning>, TrainError> {
    let mut own = String::new();
    let mut tuning = None;
    if let Some(writer) = writer
        && config.tune
    {
        at(group, "measuring algorithms");
        let (choices, found) = tune(device, plans, writer.choices.clone())?;
        own = choices.to_string();
        tuning = Some(found);
        writer.choices = choices;
    }
    let Some(group) = group else { return Ok(tuning) };
    // Runs whatever this rank's options are, so that ranks with different options meet where configurations are compared.
    let texts = group.all_gather_bytes(own.as_bytes())?;
    if let Some(text) = texts.first().filter(|text| !text.is_empty()) {
        plans.choose(&String::from_utf8_lossy(text).parse()?);
    }
    Ok(tuning)
}
