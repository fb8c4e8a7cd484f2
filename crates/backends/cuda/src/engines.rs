//! The engines of cuDNN that a GPU's convolutions use, and cuBLASLt's algorithms for its matmuls:
//! each problem is planned once.
//!
//! Only engines that give the same bits each time are used. f32 means f32, unless the plan says
//! tf32.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::CudaError;
use crate::cublas_lt::{CublasLt, LtHandle, MatmulPlan, MatmulProblem};
use crate::cudnn::{ConvolutionPlan, Cudnn, Handle, Options, Problem, Target};
use crate::libraries::Version;

/// The most workspace of an engine, in the order in which they are tried: every program holds the largest of its engines.
const WORKSPACE: [u64; 2] = [1 << 30, 4 << 30];

/// What cuDNN said to a problem, or to an engine's name for it.
type Answer = Result<Arc<ConvolutionPlan>, CudaError>;

/// cuDNN on one GPU, and its answers so far.
pub(crate) struct Engines {
    cudnn: Cudnn,
    pub handle: Mutex<Handle>,
    /// By problem, and the engine's name where the engine was chosen.
    answers: Mutex<HashMap<(Problem, Option<String>), Answer>>,
    exact: bool,
}

impl Engines {
    /// Without answers. The context of `cudnn`'s GPU must be current. `exact` leaves out the algorithms that round more than
    /// direct sums.
    pub fn new(cudnn: Cudnn, exact: bool) -> Result<Self, CudaError> {
        let handle = Mutex::new(cudnn.handle()?);
        Ok(Engines { cudnn, handle, answers: Mutex::default(), exact })
    }

    /// cuDNN's version.
    pub fn version(&self) -> Version {
        self.cudnn.version()
    }

    /// Whether the algorithms that round more than direct sums are left out.
    pub fn exact(&self) -> bool {
        self.exact
    }

    /// The engine for a problem: the best by cuDNN's estimate that gives the same bits each time and takes modest workspace.
    pub fn convolution(&self, problem: &Problem) -> Answer {
        let best = self.answer(problem, None, || {
            let none = || CudaError::Unsupported(format!("cuDNN has no engine for a {problem}"));
            self.candidates(problem, 1)?.into_iter().next().ok_or_else(none)
        })?;
        self.keep(&best);
        Ok(best)
    }

    /// The engine with that name, if it may be taken for the problem.
    pub fn named(&self, problem: &Problem, name: &str) -> Answer {
        self.answer(problem, Some(name), || {
            let [_, most] = WORKSPACE;
            let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
            self.cudnn.plan(&Target::Handle(&handle), problem, name, &self.options(most, 1)).map(Arc::new)
        })
    }

    /// The engines that may be taken for a problem, at most `most`, the best by cuDNN's estimate first.
    pub fn candidates(&self, problem: &Problem, most: usize) -> Result<Vec<Arc<ConvolutionPlan>>, CudaError> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = |workspace| self.cudnn.plans(&Target::Handle(&handle), problem, &self.options(workspace, most));
        let [modest, largest] = WORKSPACE;
        let plans = ask(modest).or_else(|_| ask(largest))?;
        Ok(plans.into_iter().map(Arc::new).collect())
    }

    /// Remembers an engine under its name.
    pub fn keep(&self, plan: &Arc<ConvolutionPlan>) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.insert((*plan.problem(), Some(plan.name())), Ok(plan.clone()));
    }

    fn options(&self, workspace: u64, candidates: usize) -> Options {
        Options { deterministic: true, exact: self.exact, workspace, candidates }
    }

    fn answer(&self, problem: &Problem, name: Option<&str>, ask: impl FnOnce() -> Answer) -> Answer {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.entry((*problem, name.map(str::to_owned))).or_insert_with(ask).clone()
    }
}

/// The most workspace of a matmul.
const WORKSPACE_OF_MATMUL: u64 = 32 << 20;

/// What cuBLASLt said to a matmul. A plan keeps the place of the bias, so only one thread runs it at a time.
type MatmulAnswer = Result<Arc<Mutex<MatmulPlan>>, CudaError>;

/// cuBLASLt on one GPU, and its answers so far.
pub(crate) struct Matmuls {
    library: CublasLt,
    pub handle: Mutex<LtHandle>,
    answers: Mutex<HashMap<MatmulProblem, MatmulAnswer>>,
}

impl Matmuls {
    /// Without answers. A context must be current.
    pub fn new(library: CublasLt) -> Result<Self, CudaError> {
        let handle = Mutex::new(library.handle()?);
        Ok(Matmuls { library, handle, answers: Mutex::default() })
    }

    /// The algorithm for a matmul: the best by cuBLASLt's estimate that gives the same bits each time.
    pub fn plan(&self, problem: &MatmulProblem) -> MatmulAnswer {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = || {
            let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
            let plan = self.library.plan(&handle, problem, WORKSPACE_OF_MATMUL)?;
            Ok(Arc::new(Mutex::new(plan)))
        };
        answers.entry(*problem).or_insert_with(ask).clone()
    }

    /// The algorithm's name and bytes of workspace.
    pub fn facts(&self, problem: &MatmulProblem) -> Result<(String, usize), CudaError> {
        let plan = self.plan(problem)?;
        let plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((plan.name.clone(), usize::try_from(plan.workspace).unwrap_or(usize::MAX)))
    }
}
