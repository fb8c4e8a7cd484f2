//! The engines of cuDNN that a card's convolutions use, and cuBLASLt's algorithms for its products of matrices: each problem
//! is planned once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::CudaError;
use crate::cublas_lt::{CublasLt, LtHandle, ProductPlan, ProductProblem};
use crate::cudnn::{ConvolutionPlan, Cudnn, Handle, Options, Problem, Target, Version};

/// The most workspace of an engine, in the order in which they are tried: every program holds the largest of its engines.
const WORKSPACE: [u64; 2] = [1 << 30, 4 << 30];

/// What cuDNN said to a problem.
type Answer = Result<Arc<ConvolutionPlan>, CudaError>;

/// cuDNN on one card, and its answers so far.
pub(crate) struct Engines {
    cudnn: Cudnn,
    pub handle: Mutex<Handle>,
    answers: Mutex<HashMap<Problem, Answer>>,
    exact: bool,
}

impl Engines {
    /// Without answers. The context of `cudnn`'s card must be current. `exact` leaves out the algorithms that round more than
    /// direct sums.
    pub fn new(cudnn: Cudnn, exact: bool) -> Result<Self, CudaError> {
        let handle = Mutex::new(cudnn.handle()?);
        Ok(Engines { cudnn, handle, answers: Mutex::default(), exact })
    }

    /// cuDNN's version.
    pub fn version(&self) -> Version {
        self.cudnn.version()
    }

    /// The engine for a problem: the best by cuDNN's estimate that gives the same bits each time and takes modest workspace.
    pub fn convolution(&self, problem: &Problem) -> Answer {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = answers.get(problem) {
            return answer.clone();
        }
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = |workspace: u64| {
            let options = Options { deterministic: true, exact: self.exact, workspace, candidates: 1 };
            let plans = self.cudnn.plans(&Target::Handle(&handle), problem, &options)?;
            let none = || CudaError::Unsupported(format!("cuDNN has no engine for a {problem}"));
            plans.into_iter().next().map(Arc::new).ok_or_else(none)
        };
        let [modest, most] = WORKSPACE;
        let answer = ask(modest).or_else(|_| ask(most));
        answers.insert(*problem, answer.clone());
        answer
    }
}

/// The most workspace of a product.
const WORKSPACE_OF_PRODUCT: u64 = 32 << 20;

/// What cuBLASLt said to a product. A plan keeps the place of the bias, so only one thread runs it at a time.
type ProductAnswer = Result<Arc<Mutex<ProductPlan>>, CudaError>;

/// cuBLASLt on one card, and its answers so far.
pub(crate) struct Products {
    library: CublasLt,
    pub handle: Mutex<LtHandle>,
    answers: Mutex<HashMap<ProductProblem, ProductAnswer>>,
}

impl Products {
    /// Without answers. A context must be current.
    pub fn new(library: CublasLt) -> Result<Self, CudaError> {
        let handle = Mutex::new(library.handle()?);
        Ok(Products { library, handle, answers: Mutex::default() })
    }

    /// The algorithm for a product: the best by cuBLASLt's estimate that gives the same bits each time.
    pub fn plan(&self, problem: &ProductProblem) -> ProductAnswer {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = || {
            let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
            let plan = self.library.plan(&handle, problem, WORKSPACE_OF_PRODUCT)?;
            Ok(Arc::new(Mutex::new(plan)))
        };
        answers.entry(*problem).or_insert_with(ask).clone()
    }

    /// The algorithm's name and bytes of workspace.
    pub fn facts(&self, problem: &ProductProblem) -> Result<(String, usize), CudaError> {
        let plan = self.plan(problem)?;
        let plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((plan.name.clone(), usize::try_from(plan.workspace).unwrap_or(usize::MAX)))
    }
}
