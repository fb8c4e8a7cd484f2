//! Compiles a model to its plans: records it for training and for evaluation, and runs the passes.

use crate::autodiff::backward;
use crate::builder::Forward;
use crate::loss::{AddedLoss, add_loss};
use crate::metric::add_metrics;
use crate::ops::{CheckFinite, ShareMetrics, SumRequests, SumStages};
use crate::passes::{
    GradientSums, Kept, LayerStages, LossScale, OfGradients, Strategy, WeightedLoss, add_averages, add_residuals,
    collect, cut_layers, cut_stages, data_parallel, freeze, freeze_statistics, gather, mark_boundaries,
    narrow_features, optimize, pad_images, partition, read_averages, recompute, replicate, store_gates,
    sync_batch_norm,
};
use crate::placement::{bytes, gradient_arena, place, state_tensors};
use crate::{
    Arena, Builder, CompileOptions, Graph, GraphError, Loss, Measured, Metric, Mode, Node, Op, OperationLocation,
    Partition, Per, Phase, Plan, Plans, Recompute, Relation, Role, StateTensor, Target, TargetKind, Tensor, ValueId,
};

/// Compiles the training and the evaluation step of a model for the default target; see [`Target::compile`].
///
/// # Errors
/// Those of [`Target::compile`].
///
/// ```
/// use enmasse_graph::{CompileOptions, Tensor, compile};
/// let model = |x: Tensor| x.flatten().linear("fc1", 32).relu().linear("fc2", 10);
/// let plans = compile(&model, &CompileOptions::new("mlp", 8, 16, 10)).unwrap();
/// assert_eq!(plans.train.unwrap().trainable, (768 * 32 + 32) + (32 * 10 + 16));
/// ```
pub fn compile(model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions) -> Result<Plans, GraphError> {
    Target::default().compile(model, options)
}

/// Compiles only the evaluation step, for the default target; see [`Target::compile_evaluation`].
///
/// # Errors
/// Those of [`Target::compile_evaluation`].
pub fn compile_evaluation(model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions) -> Result<Plans, GraphError> {
    Target::default().compile_evaluation(model, options)
}

impl Target<'_> {
    /// Compiles the training and the evaluation step of a model.
    ///
    /// # Errors
    /// An option is out of range or contradicts another, or a layer does not take what it is given. Or what is trained
    /// and the loss do not fit: a trained parameter does not reach the loss, a gradient reaches an operation that has
    /// none, or nothing is left to train.
    pub fn compile(&self, model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions) -> Result<Plans, GraphError> {
        options.check()?;
        // Elsewhere the device compresses by itself, or not at all.
        let compress = options.compress.filter(|_| self.compresses_sums);
        let options = &CompileOptions { compress, ..options.clone() };
        let usual = CompileOptions { recompute: Recompute::Nothing, ..options.clone() };
        let (train, state) = train_plan(self.record_training(model, &usual)?, &usual, &[])?;
        let mut forward = self.record(model, options, Mode::Evaluate)?;
        if options.average.is_some() {
            read_averages(&mut forward.graph);
        }
        let evaluate = evaluation_plan(forward, options, &state)?;
        let plans = self.plans(Some(train), evaluate, state);
        match options.recompute {
            Recompute::Nothing => Ok(plans),
            _ => self.recomputing(self.record_training(model, options)?, options, plans),
        }
    }

    fn record_training(
        &self,
        model: &dyn Fn(Tensor) -> Tensor,
        options: &CompileOptions,
    ) -> Result<Forward, GraphError> {
        let mut forward = self.record(model, options, Mode::Train)?;
        if let Some(teacher) = &options.teacher {
            let forward_of_teacher = self.record(&|x| teacher.forward(x), &teacher.options(options), Mode::Evaluate)?;
            forward.learn_from(forward_of_teacher);
        }
        Ok(forward)
    }

    /// Compiles only the evaluation step, without gradients and optimiser state.
    ///
    /// # Errors
    /// An option is out of range or contradicts another, or a layer does not take what it is given.
    pub fn compile_evaluation(
        &self,
        model: &dyn Fn(Tensor) -> Tensor,
        options: &CompileOptions,
    ) -> Result<Plans, GraphError> {
        options.check()?;
        let forward = self.record(model, options, Mode::Evaluate)?;
        let parameters: Vec<ValueId> = forward.graph.parameters().map(|(id, _, _)| id).collect();
        let state = state_tensors(&forward.graph, &parameters);
        let evaluate = evaluation_plan(forward, options, &state)?;
        Ok(self.plans(None, evaluate, state))
    }

    /// Compiles an evaluation step whose logits are the features of a layer: of the one with this name, with what follows it without a
    /// name, or without a name what the last linear layer reads. Features of an image's places are their mean. The plan's classes are
    /// as many as the features, so labels should be -1.
    ///
    /// # Errors
    /// Those of [`compile_evaluation`](Self::compile_evaluation). Or the model has no such layer, or without a name
    /// does not end in a linear layer.
    pub fn compile_features(
        &self,
        model: &dyn Fn(Tensor) -> Tensor,
        options: &CompileOptions,
        layer: Option<&str>,
    ) -> Result<Plans, GraphError> {
        options.check()?;
        let features = |x: Tensor| {
            let logits = model(x);
            let features = logits.features(layer);
            match features.shape().len() {
                4 => features.adaptive_avg_pool([1, 1]).flatten(),
                _ => features,
            }
        };
        // Its number is known once the model is recorded.
        let builder = Builder::new(options.batch, options.size, Mode::Evaluate, options.seed);
        let classes = features(builder.pixels(&options.mean, &options.std)).shape().last();
        // They are not what the loss of labels or numbers compares with an image's own.
        let target = TargetKind::Class;
        let loss = Loss::default();
        let options = CompileOptions { classes, target, loss, metrics: Vec::new(), ..options.clone() };
        self.compile_evaluation(&features, &options)
    }

    pub(crate) fn plans(&self, train: Option<Plan>, evaluate: Plan, state: Vec<StateTensor>) -> Plans {
        let of_target = |plan| Plan { filters: self.filters, ..plan };
        Plans { train: train.map(of_target), evaluate: of_target(evaluate), state }
    }

    pub(crate) fn record(
        &self,
        model: &dyn Fn(Tensor) -> Tensor,
        options: &CompileOptions,
        mode: Mode,
    ) -> Result<Forward, GraphError> {
        let builder = Builder::new(options.batch, options.size, mode, options.seed).filters(self.filters);
        let builder = builder.drop_path(options.drop_path);
        let logits = model(builder.pixels(&options.mean, &options.std));
        let mut forward = builder.finish(&logits, options.classes)?;
        if mode == Mode::Train {
            let is_left_out = |node: &Node| matches!(&node.op, Op::Dropout(drop) if drop.per_sample);
            if options.drop_path.is_some_and(|rate| rate > 0.0) && !forward.graph.nodes.iter().any(is_left_out) {
                let reason = "`drop_path` has no effect: the model has no blocks that can be left out";
                return Err(GraphError::Option(reason.to_owned()));
            }
            freeze(&mut forward.graph, &options.freeze)?;
            if options.freeze_statistics {
                freeze_statistics(&mut forward.graph, &|_, _| true);
            }
            check_statistics(&forward.graph, options)?;
        }
        forward.stages = options.stage.as_ref().map(|cut| LayerStages::new(&forward.graph, cut)).transpose()?;
        forward.tensor_parallel =
            options.tensor_parallel.map(|ranks| cut_layers(&mut forward.graph, ranks)).transpose()?;
        // Marks are of no use elsewhere, and would keep what could be fused.
        if mode == Mode::Evaluate || options.recompute == Recompute::Nothing {
            forward.graph.values.iter_mut().for_each(|value| value.checkpoint = false);
        } else {
            mark_boundaries(&mut forward.graph);
        }
        if options.fuse {
            let mut keep = vec![forward.logits];
            keep.extend(forward.stages.iter().flat_map(|stages| stages.crossing(&forward.graph)));
            (self.fuse)(&mut forward.graph, &keep, mode);
            if let (Mode::Train, Some(bytes)) = (mode, self.gate_bytes) {
                store_gates(&mut forward.graph, bytes, options.precision);
            }
        }
        let Forward { graph, images, labels, sample_indices, logits, .. } = &mut forward;
        graph.prune(&mut [images, labels, sample_indices, logits]);
        if self.narrow_features {
            narrow_features(graph, *logits);
        }
        if let Some(multiple) = self.image_channels {
            pad_images(graph, multiple, options.precision);
        }
        if let TargetKind::Values(count) = options.target {
            forward.take_values(count);
        }
        Ok(forward)
    }
}

/// Refuses batch statistics over a single value per channel, which are useless. Layers that freezing has turned to running
/// statistics are exempt. With SyncBatchNorm the values of all shards count.
fn check_statistics(graph: &Graph, options: &CompileOptions) -> Result<(), GraphError> {
    let shards = if options.sync_batch_norm { options.shards } else { 1 };
    for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::BatchNormStatistics(_))) {
        let shape = graph.shape(node.inputs[0]);
        if shape.elements() / shape.last() * shards < 2 {
            let layer = node.layer.clone();
            return Err(GraphError::Shape {
                place: OperationLocation { operation: "batch_norm", layer, relation: Relation::Layer },
                shape: shape.clone(),
                reason: "training needs more than one value per channel: use a larger `batch` or `size`".into(),
            });
        }
    }
    Ok(())
}

/// The plan of training, in which backward computes the `chosen` blocks again.
pub(crate) fn train_plan(
    mut forward: Forward,
    options: &CompileOptions,
    chosen: &[bool],
) -> Result<(Plan, Vec<StateTensor>), GraphError> {
    // The loss is a mean over the places of the global batch, so that the sum over shards needs no division.
    let scale = 1.0 / (options.batch * options.shards) as f32;
    if options.mixed && options.target == TargetKind::Class {
        forward.mix();
    }
    // Updates of running statistics are set aside and appended after the optimiser's, so that autodiff sees no node after the
    // loss.
    let (updates, forwards) = forward.graph.nodes.drain(..).partition(|node| node.phase == Phase::Update);
    forward.graph.nodes = forwards;
    let AddedLoss { node: loss_node, loss, mut correct } = add_loss(&mut forward, options, scale, Mode::Train)?;
    // Metrics come after the loss, so that autodiff does not visit them.
    let mut measured = add_metrics(&mut forward, &options.metrics)?;
    let mut gradients = backward(&mut forward.graph, loss_node, options.allow_unused)?;
    let graph = &mut forward.graph;
    if chosen.contains(&true) {
        recompute(graph, chosen);
    }
    let weighted = options.weighted_loss.then(|| WeightedLoss::new(graph, loss));
    let mut loss = weighted.map_or(loss, |weighted| weighted.loss);
    let mut loss_weight = weighted.map(|weighted| weighted.weight);
    let mut updates: Vec<Node> = updates;
    if forward.stages.is_some() {
        forward.graph.nodes.append(&mut updates);
        let of_samples = measured.iter_mut().map(|metric| &mut metric.value);
        let results = [&mut loss].into_iter().chain(correct.as_mut()).chain(of_samples).collect();
        cut_stages(
            &mut forward,
            options.precision,
            Kept { results, inputs: loss_weight.iter_mut().collect(), gradients: Some(&mut gradients) },
        )?;
        (updates, forward.graph.nodes) = forward.graph.nodes.drain(..).partition(|node| node.phase == Phase::Update);
    }
    let graph = &mut forward.graph;
    let loss_scale = options.precision.scales_loss().then(|| LossScale::begin(graph));
    let dtype = graph.value(loss).dtype;
    let own: Vec<ValueId> =
        [loss].into_iter().chain(correct).chain(measured.iter().map(|metric| metric.value)).collect();
    // Losses, hits and metrics, and the requests to stop and to save.
    let shape = [options.shards - 1 + own.len() + 2].into();
    let metrics = graph.add_value("metrics", shape, dtype, Role::Carried);
    // Of a stage they join the gradients of the micro-batch whose backward runs.
    let phase = if options.stage.is_some() { Phase::Backward } else { Phase::Loss };
    graph.nodes.push(Node::new(ShareMetrics { shards: options.shards }, own, [metrics], phase, "step"));
    graph.nodes.sort_by_key(|node| node.phase);
    if options.sync_batch_norm {
        sync_batch_norm(graph, options.shards)?;
    }
    let arena = gradient_arena(graph, &gradients);
    let replicates = options.strategy == Strategy::Replicated && options.shards > 1;
    let ranks_of_parts = match options.strategy {
        Strategy::Partitioned { ranks } if ranks > 1 && options.shards > 1 => Some(ranks),
        _ => None,
    };
    let sums = match options.compress {
        Some(to) if options.shards > 1 => GradientSums::Compressed(to),
        _ if ranks_of_parts.is_some() => GradientSums::Parts,
        _ => GradientSums::All,
    };
    if matches!(sums, GradientSums::Compressed(_)) {
        add_residuals(graph, &gradients);
    }
    let buckets = match replicates {
        true => collect(graph, &arena, metrics),
        false => data_parallel(graph, &arena, options.shards, options.buckets, sums),
    };
    if options.stage.is_some() {
        graph.nodes.push(Node::new(SumStages, [metrics], [], Phase::Reduce, "step"));
    }
    if options.tensor_parallel.is_some() {
        graph.nodes.push(Node::new(SumRequests, [metrics], [], Phase::Reduce, "step"));
    }
    let partition = ranks_of_parts.map(|ranks| partition(graph, &arena, &buckets, ranks));
    graph.nodes.push(Node::new(CheckFinite, [metrics], [], Phase::Check, "step"));
    let OfGradients { norm, scaling } = optimize(graph, &gradients, options, loss_scale.as_ref())?;
    let position = options.metrics.iter().position(|metric| matches!(metric, Metric::GradientNorm));
    if let (Some(position), Some(value)) = (position, norm) {
        measured.insert(position, Measured { name: Metric::GradientNorm.name(), value, per: Per::Step });
    }
    if let Some(partition) = &partition {
        gather(graph, &gradients, &arena, partition);
    }
    graph.nodes.extend(updates);
    if replicates {
        let of_gradients = norm.into_iter().chain(scaling.map(|scaling| scaling.unscale)).collect();
        replicate(graph, of_gradients, gradients.iter().map(|&(parameter, _)| parameter).collect());
    }
    if let Some(averaging) = options.average {
        add_averages(graph, averaging, scaling)?;
    }
    if let (Some(loss_scale), Some(scaling)) = (loss_scale, scaling) {
        loss_scale.end(graph, scaling);
    }
    // What is computed from all gradients belongs to the reduce phase, after the sums.
    graph.nodes.sort_by_key(|node| node.phase);

    let order: Vec<ValueId> = gradients.iter().map(|&(parameter, _)| parameter).collect();
    let state = state_tensors(graph, &order);
    let elements = |&(_, gradient): &(ValueId, ValueId)| bytes(graph, gradient) / graph.value(gradient).dtype.size();
    let trainable = gradients.iter().map(elements).sum();
    let mut plan = place(forward, options, Mode::Train, (loss, correct), measured, &state, &arena)?;
    plan.metrics = Some(metrics);
    plan.loss_weight = loss_weight;
    plan.buckets = buckets;
    plan.all_reduce = options.all_reduce;
    plan.trainable = trainable;
    plan.partition = partition.map(|partition| {
        let of_optimizer = state.iter().filter(|tensor| matches!(tensor.slot.arena, Arena::Optimizer(_)));
        let owned =
            of_optimizer.map(|tensor| (tensor.clone(), partition.owner(tensor.slot.offset / tensor.dtype.size())));
        Partition { state: owned.collect(), ..partition }
    });
    Ok((plan, state))
}

pub(crate) fn evaluation_plan(
    mut forward: Forward,
    options: &CompileOptions,
    state: &[StateTensor],
) -> Result<Plan, GraphError> {
    let AddedLoss { mut loss, mut correct, .. } = add_loss(&mut forward, options, 1.0, Mode::Evaluate)?;
    let mut measured = add_metrics(&mut forward, &options.metrics)?;
    let of_samples = measured.iter_mut().map(|metric| &mut metric.value);
    let results = [&mut loss].into_iter().chain(correct.as_mut()).chain(of_samples).collect();
    cut_stages(&mut forward, options.precision, Kept { results, inputs: Vec::new(), gradients: None })?;
    place(forward, options, Mode::Evaluate, (loss, correct), measured, state, &[])
}

#[cfg(test)]
mod tests {
    use enmasse_tensor::DType;

    use super::*;
    use crate::{Arena, BucketSizes, Conv, Freeze, Loss, Pool};

    fn residual_net(x: Tensor) -> Tensor {
        let x = x.conv2d("stem", Conv::new(8, 3).padding(1).no_bias()).batch_norm("bn").relu();
        let y = x.clone().conv2d("a", Conv::new(8, 3).padding(1).no_bias()).batch_norm("bn_a").relu();
        let y = y.conv2d("b", Conv::new(8, 3).padding(1).no_bias()).batch_norm("bn_b");
        let x = (y + x).relu().max_pool(Pool::new(2)).dropout("drop", 0.5);
        x.adaptive_avg_pool([1, 1]).flatten().linear("fc", 10)
    }

    fn options(shards: usize) -> CompileOptions {
        CompileOptions { shards, ..CompileOptions::new("net", 4, 16, 10) }
    }

    #[test]
    fn parameters_gradients_and_state_lie_at_the_same_offsets() {
        let plans = compile(&residual_net, &options(1)).unwrap();
        let train = plans.train.as_ref().unwrap();
        for (id, value) in train.values.iter().enumerate() {
            if let Role::Gradient { parameter } = value.role {
                let name = &train.value(parameter).name;
                let momentum = plans.find(&format!("optimizer.momentum_buffer.{name}")).unwrap();
                assert_eq!(train.slots[id].offset, train.slot(parameter).offset, "{name}");
                assert_eq!(train.slots[id].offset, momentum.slot.offset, "{name}");
                assert_eq!(plans.find(name).unwrap().slot, train.slot(parameter));
            }
        }
        let last = train.slot(train.values.iter().position(|v| v.name == "stem.weight").map(ValueId).unwrap());
        assert_eq!(last.offset / 4 + 3 * 3 * 3 * 8 + 8, train.trainable, "the first layer's gradient is complete last");
    }

    #[test]
    fn phases_ascend_and_buckets_start_in_order() {
        let check = |shards: usize, sync: bool, buckets: BucketSizes, expected: usize| {
            let plans =
                compile(&residual_net, &CompileOptions { sync_batch_norm: sync, buckets, ..options(shards) }).unwrap();
            let plan = plans.train.unwrap();
            assert!(plan.instructions.is_sorted_by_key(|node| node.phase));
            let starts: Vec<usize> = (plan.instructions.iter())
                .filter_map(|node| if let Op::AllReduceStart(start) = node.op { Some(start.bucket) } else { None })
                .collect();
            assert!(starts.into_iter().eq(0..expected));
            assert_eq!(plan.buckets.len(), expected);
            let mut end = 0;
            for bucket in &plan.buckets {
                assert_eq!(bucket.start, end);
                end += bucket.len;
            }
            assert!(expected == 0 || end * 4 == plan.arena_bytes(Arena::Gradients));
        };
        check(1, true, BucketSizes::default(), 0);
        check(2, false, BucketSizes::default(), 1);
        check(2, true, BucketSizes { first: 64, other: 2048 }, 4);
        check(3, false, BucketSizes { first: 1, other: 1 }, 11);
    }

    #[test]
    fn features_are_what_a_layer_gives() {
        let check = |layer: Option<&str>, expected: Result<(usize, &str), &str>| {
            let plans = Target::default().compile_features(&residual_net, &options(1), layer);
            match expected {
                Ok((width, last)) => {
                    let Plans { train, evaluate, state } = plans.unwrap();
                    assert_eq!((evaluate.classes, train.is_none()), (width, true), "{layer:?}");
                    let forward = evaluate.phase(Phase::Forward).last().unwrap();
                    assert_eq!(forward.layer, last, "{layer:?}");
                    let whole = compile_evaluation(&residual_net, &options(1)).unwrap();
                    assert_eq!(state, whole.state, "the tensors of the model");
                }
                Err(expected) => assert_eq!(plans.unwrap_err().to_string(), expected),
            }
        };
        check(None, Ok((8, "drop")));
        check(Some("stem"), Ok((8, "stem")));
        check(Some("fc"), Ok((10, "fc")));
        check(Some("fc2"), Err("the model has no layer fc2; the last one is fc"));
        let convolutional = |x: Tensor| x.conv2d("conv", Conv::new(10, 3)).adaptive_avg_pool([1, 1]).flatten();
        let found = Target::default().compile_features(&convolutional, &options(1), None).unwrap_err().to_string();
        let expected = "the model does not end in a linear layer, whose input would be its features, but in conv";
        assert_eq!(found, expected);
    }

    #[test]
    fn a_value_without_a_place_is_refused() {
        let check = |role: Role, arena: Arena| {
            let mut forward = Target::default().record(&residual_net, &options(1), Mode::Evaluate).unwrap();
            forward.graph.add_value("lost", [4].into(), DType::F32, role);
            let state = state_tensors(&forward.graph, &[]);
            let state: Vec<StateTensor> = state.into_iter().filter(|tensor| tensor.name != "lost").collect();
            let found = evaluation_plan(forward, &options(1), &state);
            let name = "lost".into();
            assert_eq!(found.unwrap_err(), GraphError::Unplaced { name, arena });
        };
        check(Role::Carried, Arena::Gradients);
        check(Role::Gradient { parameter: ValueId(0) }, Arena::Gradients);
        check(Role::Activation, Arena::Activations);
        check(Role::Buffer { initial: 0.0 }, Arena::Buffers);
    }

    #[test]
    fn activations_share_memory() {
        let plans = compile(&residual_net, &options(1)).unwrap();
        let train = plans.train.unwrap();
        let ratio = train.arena_bytes(Arena::Activations) as f64 / train.unshared_activations as f64;
        assert!(ratio < 0.7, "{ratio}");
        assert!(plans.evaluate.arena_bytes(Arena::Activations) * 2 < plans.evaluate.unshared_activations);
    }

    #[test]
    fn the_text_is_the_same_every_time_and_differs_with_the_plan() {
        let text = |options: &CompileOptions| compile(&residual_net, options).unwrap().train.unwrap().to_string();
        assert_eq!(text(&options(2)), text(&options(2)));
        assert_ne!(
            text(&options(2)),
            text(&CompileOptions { loss: Loss::CrossEntropy { smoothing: 0.1, weights: Vec::new() }, ..options(2) })
        );
        assert!(
            text(&options(2)).contains("batch_norm_normalize {epsilon 0.00001 batch of 1024 relu}"),
            "{}",
            text(&options(2))
        );
    }

    #[test]
    fn unused_parameters_are_named() {
        let model = |x: Tensor| {
            let side = x.clone().conv2d("side", Conv::new(4, 1));
            drop(side);
            x.flatten().linear("fc", 10)
        };
        let error = compile(&model, &options(1)).unwrap_err();
        assert!(error.to_string().contains("side.weight"), "{error}");
        assert!(compile(&model, &CompileOptions { allow_unused: true, ..options(2) }).is_ok());
        let all = CompileOptions { freeze: Freeze::Patterns(vec!["*".into()]), ..options(1) };
        assert_eq!(compile(&residual_net, &all).unwrap_err(), GraphError::NothingToTrain);
    }

    #[test]
    fn batch_statistics_of_one_value_per_channel_are_refused() {
        let model = |x: Tensor| x.batch_norm("bn").flatten().linear("fc", 10);
        let check = |change: CompileOptions, fine: bool| {
            let found = compile(&model, &CompileOptions { batch: 1, size: [1, 1], ..change });
            assert_eq!(found.is_ok(), fine, "{found:?}");
            assert!(fine || found.unwrap_err().to_string().contains("layer bn"));
        };
        check(options(1), false);
        check(options(2), false);
        check(CompileOptions { sync_batch_norm: true, ..options(2) }, true);
        check(CompileOptions { freeze: Freeze::Patterns(vec!["bn".into()]), ..options(1) }, true);
    }
}
