//! Plans of convolutions: which engines take a problem, and how they are run.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use enmasse_graph::Precision;
use enmasse_tensor::DType;

use super::descriptor::Descriptor;
use super::engine::Engine;
use super::graph::{BIAS, OperationGraph, W, X, Y};
use super::problem::{Direction, Epilogue, Problem};
use super::sys::{Address, Attribute, Functions, HeuristicsMode, Kind, Knob, Note, RawDescriptor, RawHandle};
use super::{Cudnn, Handle, Target};
use crate::error::CudaError;
use crate::libraries::Library;
use crate::operands::Operands;

/// More knobs than a configuration sets: there are 46 kinds in cuDNN 9.28.
const MAX_KNOBS: usize = 64;

/// The most plans of one engine, which differ in its knobs: cuDNN's first proposals are often one engine with several tiles.
const MAX_OF_ENGINE: usize = 4;

/// Which engines may be taken.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Only engines that give the same bits each time.
    pub deterministic: bool,
    /// No engine that uses Winograd's algorithm or Fourier transforms, which round more.
    pub exact: bool,
    /// The most bytes of workspace.
    pub workspace: u64,
    /// The most plans.
    pub candidates: usize,
}

/// An engine that is ready to run.
#[derive(Debug)]
pub struct ConvolutionPlan {
    functions: Arc<Functions>,
    plan: Descriptor,
    /// What the plan refers to is dropped after it.
    _configuration: Configuration,
    _graph: Arc<OperationGraph>,
    problem: Problem,
    /// The type of the weights, or in which their gradient is written.
    pub weights: DType,
    /// Bytes of workspace.
    pub workspace: u64,
    /// Whether it is one of the slow engines that always work, since cuDNN's estimate names no other. Not known of an engine that was
    /// chosen by its name, which has `false`.
    pub is_fallback: bool,
    /// The engine. Its text makes it again: [`Cudnn::plan`].
    pub engine: Engine,
}

/// A configuration of an engine, with what it was made of.
#[derive(Debug)]
struct Configuration {
    descriptor: Descriptor,
    _parts: Vec<Descriptor>,
}

// SAFETY: a plan is not tied to a thread. Its descriptors are read alone once they are finalized.
unsafe impl Sync for OperationGraph {}
// SAFETY: as above; a plan is run with a handle, which only one thread has at a time.
unsafe impl Sync for ConvolutionPlan {}

impl Cudnn {
    /// The engines that take a problem. There is at least one, and the first is the best by cuDNN's estimate. The gradient of
    /// weights from 16-bit activations may be written as f32 or in the type of the activations: engines of the first kind come first,
    /// then those of the second, half of the candidates each where there are enough.
    ///
    /// # Errors
    /// [`CudaError::Refused`] with cuDNN's last reason if no engine takes it.
    pub fn plans(
        &self,
        target: &Target<'_>,
        problem: &Problem,
        options: &Options,
    ) -> Result<Vec<ConvolutionPlan>, CudaError> {
        let types = types_of_weights(problem);
        let plannings: Vec<_> =
            types.iter().map(|&weights| Planning::new(&self.functions, target, problem, weights)).collect();
        let mut found = Found::default();
        // The fallback's engines are the slow ones that always work: they are asked for where no type of weights has another.
        for mode in [HeuristicsMode::A, HeuristicsMode::Fallback] {
            for (planning, types_left) in plannings.iter().zip((1..=types.len()).rev()) {
                let most = (options.candidates - found.plans.len()).div_ceil(types_left);
                let looked = match planning {
                    Ok(planning) => planning.look(mode, options, most, &mut found),
                    Err(error) => Err(error.clone()),
                };
                found.why = looked.err().or(found.why);
            }
            if !found.plans.is_empty() {
                return Ok(found.plans);
            }
        }
        Err(refused(problem, found.reason(options)))
    }

    /// The engine of that name, without asking which is best.
    ///
    /// # Errors
    /// [`CudaError::Refused`] if the name is not an engine's, the engine does not take the problem, or the options do not permit it.
    pub fn plan(
        &self,
        target: &Target<'_>,
        problem: &Problem,
        name: &str,
        options: &Options,
    ) -> Result<ConvolutionPlan, CudaError> {
        let refused = |why: String| refused(problem, why);
        let engine: Engine = name.parse().map_err(|()| refused(format!("{name:?} names no engine")))?;
        let weights = engine.weights.unwrap_or(problem.arithmetic.activations());
        if engine.weights.is_some() != (types_of_weights(problem).len() > 1) {
            return Err(refused(format!("{name:?} is an engine of another problem")));
        }
        let made = || {
            let planning = Planning::new(&self.functions, target, problem, weights)?;
            let configuration = planning.configuration(&engine)?;
            let (_, notes) = read(&configuration.descriptor)?;
            Ok((notes, planning.finish(configuration, engine.clone())?))
        };
        let (notes, plan) = made().map_err(|error: CudaError| refused(format!("{name}: {error}")))?;
        match permits(problem.arithmetic, options, &notes) {
            false => Err(refused(format!("{name}: it computes otherwise than asked"))),
            true if plan.workspace > options.workspace => {
                Err(refused(format!("{name}: it needs more than {} MiB", options.workspace >> 20)))
            }
            true => Ok(plan),
        }
    }
}

/// What has been found for a problem so far.
#[derive(Default)]
struct Found {
    plans: Vec<ConvolutionPlan>,
    /// The last reason for which an engine, or all of a mode, was refused.
    why: Option<CudaError>,
    /// Engines that compute otherwise than asked.
    other_arithmetic: usize,
    /// Engines that need too much workspace.
    too_large: usize,
}

impl Found {
    /// Why there is no plan.
    fn reason(&self, options: &Options) -> String {
        match (&self.why, self.other_arithmetic, self.too_large) {
            (Some(CudaError::Call { why, .. } | CudaError::Refused { why, .. }), ..) => why.clone(),
            (Some(other), ..) => other.to_string(),
            (None, 0, 0) => "it proposes no engine".to_owned(),
            (None, other_arithmetic, too_large) => format!(
                "{other_arithmetic} engines compute otherwise than asked, {too_large} need more than {} MiB",
                options.workspace >> 20
            ),
        }
    }
}

fn refused(problem: &Problem, why: String) -> CudaError {
    CudaError::Refused { library: Library::Cudnn, operation: problem.to_string(), why }
}

/// A problem for a target, with weights of a type.
struct Planning<'a> {
    functions: &'a Arc<Functions>,
    target: &'a Target<'a>,
    problem: &'a Problem,
    weights: DType,
    graph: Arc<OperationGraph>,
}

impl<'a> Planning<'a> {
    fn new(
        functions: &'a Arc<Functions>,
        target: &'a Target<'_>,
        problem: &'a Problem,
        weights: DType,
    ) -> Result<Self, CudaError> {
        let graph = Arc::new(OperationGraph::new(functions, target.handle(), problem, weights)?);
        Ok(Planning { functions, target, problem, weights, graph })
    }

    /// Adds at most `most` plans of the engines that cuDNN proposes.
    fn look(&self, mode: HeuristicsMode, options: &Options, most: usize, found: &mut Found) -> Result<(), CudaError> {
        if most == 0 {
            return Ok(());
        }
        let several = types_of_weights(self.problem).len() > 1;
        let mut of_engine: HashMap<i64, usize> = HashMap::new();
        let mut left = most;
        for descriptor in self.configurations(mode)? {
            if left == 0 {
                break;
            }
            let (mut engine, notes) = read(&descriptor)?;
            if !permits(self.problem.arithmetic, options, &notes) {
                found.other_arithmetic += 1;
                continue;
            }
            let plans = of_engine.entry(engine.index).or_default();
            if *plans == MAX_OF_ENGINE {
                continue;
            }
            engine.weights = several.then_some(self.weights);
            match self.finish(Configuration { descriptor, _parts: Vec::new() }, engine) {
                Ok(mut plan) if plan.workspace <= options.workspace => {
                    plan.is_fallback = mode == HeuristicsMode::Fallback;
                    found.plans.push(plan);
                    (*plans, left) = (*plans + 1, left - 1);
                }
                Ok(_) => found.too_large += 1,
                Err(error) => found.why = Some(error),
            }
        }
        Ok(())
    }

    /// The configurations that cuDNN proposes, the best first.
    fn configurations(&self, mode: HeuristicsMode) -> Result<Vec<Descriptor>, CudaError> {
        let heuristics = Descriptor::new(self.functions, Kind::EngineHeuristics)?
            .set(Attribute::HeuristicsOperationGraph, &[self.graph.graph.raw()])?
            .set(Attribute::HeuristicsMode, &[mode])?;
        let heuristics = self.target.describe(heuristics, Attribute::HeuristicsDevice)?.finalize()?;
        let count = heuristics.count::<RawDescriptor>(Attribute::HeuristicsResults)?;
        heuristics.descriptors(Attribute::HeuristicsResults, Kind::EngineConfiguration, count)
    }

    /// The configuration of an engine.
    fn configuration(&self, engine: &Engine) -> Result<Configuration, CudaError> {
        let descriptor = Descriptor::new(self.functions, Kind::Engine)?
            .set(Attribute::EngineOperationGraph, &[self.graph.graph.raw()])?
            .set(Attribute::EngineIndex, &[engine.index])?;
        let descriptor = self.target.describe(descriptor, Attribute::EngineDevice)?.finalize()?;
        let choice = |(knob, value): &(i32, i64)| {
            Descriptor::new(self.functions, Kind::KnobChoice)?
                .set(Attribute::KnobType, &[Knob(*knob)])?
                .set(Attribute::KnobValue, &[*value])?
                .finalize()
        };
        let mut parts = engine.knobs.iter().map(choice).collect::<Result<Vec<_>, CudaError>>()?;
        let raw: Vec<_> = parts.iter().map(Descriptor::raw).collect();
        let mut configuration = Descriptor::new(self.functions, Kind::EngineConfiguration)?
            .set(Attribute::ConfigurationEngine, &[descriptor.raw()])?;
        if !raw.is_empty() {
            configuration = configuration.set(Attribute::ConfigurationKnobChoices, &raw)?;
        }
        parts.push(descriptor);
        Ok(Configuration { descriptor: configuration.finalize()?, _parts: parts })
    }

    fn finish(&self, configuration: Configuration, engine: Engine) -> Result<ConvolutionPlan, CudaError> {
        let plan = Descriptor::new(self.functions, Kind::ExecutionPlan)?
            .set(Attribute::PlanConfiguration, &[configuration.descriptor.raw()])?;
        let plan = match self.target.handle() {
            Some(handle) => plan.set(Attribute::PlanHandle, &[RawHandle(handle)])?,
            None => self.target.describe(plan, Attribute::PlanDevice)?,
        };
        let plan = plan.finalize()?;
        let workspace = plan.one::<i64>(Attribute::PlanWorkspace)?;
        Ok(ConvolutionPlan {
            functions: self.functions.clone(),
            plan,
            _configuration: configuration,
            _graph: self.graph.clone(),
            problem: *self.problem,
            weights: self.weights,
            workspace: u64::try_from(workspace).unwrap_or(0),
            is_fallback: false,
            engine,
        })
    }
}

impl ConvolutionPlan {
    /// The name that makes the plan again.
    pub fn name(&self) -> String {
        self.engine.to_string()
    }

    /// The problem that it solves.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Submits the convolution to the handle's stream.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// The plan was made for this handle. The operands are memory of its GPU, as large as the problem's shapes and the workspace
    /// say, multiples of 16, and stay until the stream has done the work. What is written overlaps nothing else. If the stream is
    /// captured, plan and handle live as long as the graph.
    pub unsafe fn execute(&self, handle: &Handle, operands: &Operands) -> Result<(), CudaError> {
        let Operands { x, w, y, bias, workspace } = *operands;
        let mut ids = vec![X, W, Y];
        let mut pointers = vec![Address(x), Address(w), Address(y)];
        if let Direction::Forward(Epilogue::Bias | Epilogue::BiasRelu) = self.problem.direction {
            ids.push(BIAS);
            pointers.push(Address(bias));
        }
        let pack = Descriptor::new(&self.functions, Kind::VariantPack)?
            .set(Attribute::PackUniqueIds, &ids)?
            .set(Attribute::PackPointers, &pointers)?
            .set(Attribute::PackWorkspace, &[Address(workspace)])?
            .finalize()?;
        // SAFETY: plan and pack are finalized; the caller promises the rest.
        unsafe { self.functions.cudnnBackendExecute(handle.raw(), self.plan.raw().0, pack.raw().0) }
            .map_err(|error| error.about(format_args!("; {} for {}", self.engine, self.problem)))
    }
}

impl Target<'_> {
    fn handle(&self) -> Option<*mut c_void> {
        match self {
            Target::Handle(handle) => Some(handle.raw()),
            Target::Device(_) => None,
        }
    }

    /// Names the device that a descriptor is for, unless a handle does that.
    fn describe(&self, descriptor: Descriptor, attribute: Attribute) -> Result<Descriptor, CudaError> {
        match self {
            Target::Handle(_) => Ok(descriptor),
            Target::Device(device) => descriptor.set(attribute, &[device.descriptor.raw()]),
        }
    }
}

/// The types in which the weights can be, the first choice first.
fn types_of_weights(problem: &Problem) -> &'static [DType] {
    match (problem.direction, problem.arithmetic) {
        (_, Precision::F32 | Precision::Tf32) => &[DType::F32],
        (Direction::BackwardWeights, Precision::Bf16) => &[DType::F32, DType::Bf16],
        (Direction::BackwardWeights, Precision::F16) => &[DType::F32, DType::F16],
        (_, Precision::Bf16) => &[DType::Bf16],
        (_, Precision::F16) => &[DType::F16],
    }
}

/// The engine of a configuration, and what cuDNN notes about its arithmetic.
fn read(configuration: &Descriptor) -> Result<(Engine, Vec<Note>), CudaError> {
    let engines = configuration.descriptors(Attribute::ConfigurationEngine, Kind::Engine, 1)?;
    let [engine] = engines.as_slice() else {
        let library = Library::Cudnn;
        let function = "cudnnBackendGetAttribute";
        return Err(CudaError::Call { library, function, why: "a configuration has no engine".to_owned() });
    };
    let index = engine.one::<i64>(Attribute::EngineIndex)?;
    let notes = engine.all::<Note>(Attribute::EngineNumericalNotes)?;
    // A configuration does not say how many knobs it has set, except by filling what there is room for.
    let choices = configuration.descriptors(Attribute::ConfigurationKnobChoices, Kind::KnobChoice, MAX_KNOBS)?;
    let knob = |choice: &Descriptor| {
        Ok((choice.one::<Knob>(Attribute::KnobType)?.0, choice.one::<i64>(Attribute::KnobValue)?))
    };
    let knobs = choices.iter().map(knob).collect::<Result<Vec<_>, CudaError>>()?;
    Ok((Engine { index, knobs, weights: None }, notes))
}

/// Whether an engine's arithmetic is what was asked for. cuDNN says of f32's engines that use tensor cores that they do, and
/// those round to tf32: f32 means f32.
fn permits(arithmetic: Precision, options: &Options, notes: &[Note]) -> bool {
    let mut refused = vec![Note::DOWN_CONVERT_INPUTS, Note::REDUCED_PRECISION_REDUCTION];
    if arithmetic == Precision::F32 {
        refused.push(Note::TENSOR_CORE);
    }
    if options.deterministic {
        refused.push(Note::NONDETERMINISTIC);
    }
    if options.exact {
        refused.extend([Note::WINOGRAD, Note::FFT]);
    }
    !notes.iter().any(|note| refused.contains(note))
}
