//! What is used of cuDNN 9's backend API: functions, kinds of descriptor, attributes and values, by the numbers of its header.

use std::ffi::{c_char, c_int, c_void};

use enmasse_tensor::DType;

use crate::libraries::functions;

functions! {
    /// The functions of `libcudnn.so.9`. A status is 0, or an error's number.
    pub(super) struct Functions {
        fn cudnnGetVersion() -> usize;
        fn cudnnGetCudartVersion() -> usize;
        fn cudnnGetErrorString(status: c_int) -> *const c_char;
        fn cudnnGetLastErrorString(text: *mut c_char, bytes: usize) -> ();
    }
    checked {
        fn cudnnCreate(handle: *mut *mut c_void);
        fn cudnnDestroy(handle: *mut c_void);
        fn cudnnSetStream(handle: *mut c_void, stream: *mut c_void);
        fn cudnnBackendCreateDescriptor(kind: c_int, descriptor: *mut *mut c_void);
        fn cudnnBackendDestroyDescriptor(descriptor: *mut c_void);
        fn cudnnBackendSetAttribute(
            descriptor: *mut c_void, attribute: c_int, element: c_int, count: i64, values: *const c_void,
        );
        fn cudnnBackendGetAttribute(
            descriptor: *const c_void, attribute: c_int, element: c_int, room: i64, count: *mut i64, values: *mut c_void,
        );
        fn cudnnBackendFinalize(descriptor: *mut c_void);
        fn cudnnBackendExecute(handle: *mut c_void, plan: *mut c_void, pack: *mut c_void);
    }
}

/// `cudnnBackendDescriptorType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Kind {
    Pointwise = 0,
    Convolution = 1,
    Engine = 2,
    EngineConfiguration = 3,
    EngineHeuristics = 4,
    ExecutionPlan = 5,
    KnobChoice = 7,
    ConvolutionForward = 10,
    ConvolutionBackwardFilter = 11,
    ConvolutionBackwardData = 12,
    PointwiseOperation = 13,
    OperationGraph = 15,
    VariantPack = 16,
    Tensor = 17,
    DeviceProperties = 38,
}

/// `cudnnBackendAttributeName_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Attribute {
    PointwiseMode = 0,
    PointwiseMathPrecision = 1,
    PointwiseNanPropagation = 2,
    ConvolutionComputeType = 100,
    ConvolutionMode = 101,
    ConvolutionDilations = 102,
    ConvolutionStrides = 103,
    ConvolutionPostPaddings = 104,
    ConvolutionPrePaddings = 105,
    ConvolutionSpatialDimensions = 106,
    HeuristicsMode = 200,
    HeuristicsOperationGraph = 201,
    HeuristicsResults = 202,
    HeuristicsDevice = 204,
    ConfigurationEngine = 300,
    ConfigurationKnobChoices = 302,
    PlanHandle = 400,
    PlanConfiguration = 401,
    PlanWorkspace = 402,
    PlanDevice = 407,
    KnobType = 600,
    KnobValue = 601,
    ForwardAlpha = 700,
    ForwardBeta = 701,
    ForwardConvolution = 702,
    ForwardW = 703,
    ForwardX = 704,
    ForwardY = 705,
    BackwardDataAlpha = 706,
    BackwardDataBeta = 707,
    BackwardDataConvolution = 708,
    BackwardDataW = 709,
    BackwardDataDx = 710,
    BackwardDataDy = 711,
    BackwardFilterAlpha = 712,
    BackwardFilterBeta = 713,
    BackwardFilterConvolution = 714,
    BackwardFilterDw = 715,
    BackwardFilterX = 716,
    BackwardFilterDy = 717,
    PointwiseOperationDescriptor = 750,
    PointwiseOperationX = 751,
    PointwiseOperationB = 752,
    PointwiseOperationY = 753,
    GraphHandle = 800,
    GraphOperations = 801,
    TensorAlignment = 900,
    TensorDataType = 901,
    TensorDimensions = 902,
    TensorStrides = 903,
    TensorUniqueId = 906,
    TensorIsVirtual = 907,
    PackUniqueIds = 1000,
    PackPointers = 1001,
    PackWorkspace = 1003,
    EngineOperationGraph = 1300,
    EngineIndex = 1301,
    EngineNumericalNotes = 1303,
    EngineDevice = 1307,
    DeviceJson = 2702,
}

/// `cudnnDataType_t`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct DataType(c_int);

impl From<DType> for DataType {
    fn from(dtype: DType) -> Self {
        DataType(match dtype {
            DType::F32 => 0,
            DType::F64 => 1,
            DType::F16 => 2,
            DType::I32 => 4,
            DType::U8 => 6,
            DType::Bf16 => 9,
            DType::I64 => 10,
        })
    }
}

/// `cudnnBackendHeurMode_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum HeuristicsMode {
    /// Engines that work, in no order of speed.
    Fallback = 2,
    /// A decision tree's order.
    A = 3,
}

/// `cudnnConvolutionMode_t`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum ConvolutionMode {
    /// The filter is not flipped.
    CrossCorrelation = 1,
}

/// `cudnnPointwiseMode_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum PointwiseMode {
    Add = 0,
    /// The larger of a number and 0.
    Relu = 100,
}

/// `cudnnNanPropagation_t`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum NanPropagation {
    Propagate = 1,
}

/// `cudnnBackendNumericalNote_t`. A later version may have notes that are not known here, so it is a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Note(c_int);

impl Note {
    pub const TENSOR_CORE: Self = Note(0);
    pub const DOWN_CONVERT_INPUTS: Self = Note(1);
    pub const REDUCED_PRECISION_REDUCTION: Self = Note(2);
    pub const FFT: Self = Note(3);
    pub const NONDETERMINISTIC: Self = Note(4);
    pub const WINOGRAD: Self = Note(5);
}

/// `cudnnBackendKnobType_t`, which grows with versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Knob(pub c_int);

/// A descriptor's address.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct RawDescriptor(pub *mut c_void);

/// A handle's address.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct RawHandle(pub *mut c_void);

/// An address in the GPU's memory.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Address(pub u64);

/// A type that attributes have, with its number in `cudnnBackendAttributeType_t`.
///
/// # Safety
/// The type has the size and the layout that cuDNN expects for the number.
pub(super) unsafe trait Element: Copy {
    const TYPE: c_int;
}

macro_rules! elements {
    ($($Type:ty = $number:literal;)*) => {
        // SAFETY: as the header declares them: enumerations are C's int, addresses are pointers.
        $(unsafe impl Element for $Type {
            const TYPE: c_int = $number;
        })*
    };
}

elements! {
    RawHandle = 0;
    DataType = 1;
    bool = 2;
    i64 = 3;
    f32 = 4;
    Address = 6;
    ConvolutionMode = 7;
    HeuristicsMode = 8;
    Knob = 9;
    NanPropagation = 10;
    Note = 11;
    PointwiseMode = 14;
    RawDescriptor = 15;
    u8 = 24;
}
