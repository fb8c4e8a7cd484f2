//! The safe layer over the emulated driver, which runs work as late as it may: what is not ordered comes out wrong.

use std::sync::Arc;

use enmasse_tensor::HostMemory;

use super::{Binary, Buffer, Context, Event, Found, Functions, Graph, Module, PinnedMemory, Stream, Timestamp};
use crate::CudaError;
use crate::kernels::binaries::cubin;
use crate::kernels::step::{BYTES, StepValues, set_step};
use crate::test_support::EmulatedGpu;

/// The emulated GPU 0. `None` without a compiler: the test is then in the table.
fn context() -> Option<Arc<Context>> {
    Some(Context::open(Found::look(functions()?, 0).unwrap()).unwrap())
}

fn functions() -> Option<Arc<Functions>> {
    Some(EmulatedGpu::driver(&EmulatedGpu::libraries()?))
}

/// A PTX, which has all kernels for the emulation.
fn text(text: &str) -> Binary {
    Binary { bytes: text.into(), waits: false }
}

fn bytes(buffer: &Buffer, stream: &Stream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    buffer.read(stream, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn memory_goes_there_and_back() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let [free, total] = context.memory().unwrap();
    assert!(free <= total && total > 0);
    let buffer = Buffer::new(&context, "bytes", 5).unwrap();
    buffer.zero(&stream).unwrap();
    buffer.write(&stream, 1, &[7, 8, 9]).unwrap();
    assert_eq!(bytes(&buffer, &stream, 5), [0, 7, 8, 9, 0]);
    assert!(buffer.write(&stream, 3, &[1; 3]).is_err());
    assert!(buffer.read(&stream, usize::MAX, &mut [0]).is_err());
    let pinned = PinnedMemory { context: context.clone() }.allocate(3_001).unwrap();
    assert_eq!((pinned.len(), pinned.as_ptr().align_offset(64)), (3_001, 0));
    assert!(pinned.iter().all(|&byte| byte == 0));
}

#[test]
fn too_much_memory_is_named() {
    let Some(context) = context() else { return };
    let error = Buffer::new(&context, "activations", 1 << 50).err();
    assert_eq!(error, Some(CudaError::Memory { what: "activations".into(), bytes: 1 << 50 }));
}

#[test]
fn gpus_that_are_not_there() {
    let Some(functions) = functions() else { return };
    let error = Found::look(functions, 7).err().unwrap().to_string();
    assert_eq!(error, "there is no GPU 7: the visible ones are 0 to 0; check CUDA_VISIBLE_DEVICES");
}

#[test]
fn an_event_orders_two_streams() {
    let Some(context) = context() else { return };
    let copies = Stream::new(&context).unwrap();
    let compute = Stream::new(&context).unwrap();
    let from = Buffer::new(&context, "from", 4).unwrap();
    let to = Buffer::new(&context, "to", 4).unwrap();
    let source = [1, 2, 3, 4];
    let event = Event::new(&context).unwrap();
    let run = |ordered: bool| {
        from.zero(&copies).unwrap();
        copies.wait().unwrap();
        // SAFETY: everything lives until both streams have been waited for.
        unsafe {
            copies.write(source.as_ptr(), from.address(), 4).unwrap();
            event.record(&copies).unwrap();
            if ordered {
                compute.wait_for(&event).unwrap();
            }
            compute.copy(from.address(), to.address(), 4).unwrap();
        }
        let found = bytes(&to, &compute, 4);
        copies.wait().unwrap();
        found
    };
    // Another test's memory that goes runs what is queued on every stream of the GPU, so one attempt may see the copy.
    let shown = (0..20).any(|_| run(false) == [0; 4]);
    assert!(shown, "the emulation must show a missing event");
    assert_eq!(run(true), source);
}

#[test]
fn kernels_run_and_graphs_repeat_them() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let module = Module::new(&context, text(".version 7.0")).unwrap();
    let refused = Module::new(&context, text(".target sm_75")).err().unwrap().to_string();
    assert!(
        refused.contains("CUDA_ERROR_INVALID_PTX") && refused.contains("Missing .version directive; ptxas fatal"),
        "{refused}"
    );
    let error = module.function("no_such_kernel").err().unwrap().to_string();
    assert!(error.starts_with("kernel no_such_kernel: "), "{error}");
    let values = StepValues { epoch: 3, optimizer_step: 9, learning_rate: 0.5, save: true, ..StepValues::default() };
    let kernel = set_step(&values);
    let function = module.function(&kernel.name).unwrap();
    let to = Buffer::new(&context, "step", BYTES).unwrap();
    let argument = kernel.pack(&|_| to.address());
    let graph = Graph::capture(&stream, |stream| {
        // SAFETY: the argument is the kernel's, and the buffer outlives the graph's launches.
        unsafe { function.launch(stream, kernel.grid, kernel.block, &argument) }
    });
    let graph = graph.unwrap();
    for _ in 0..2 {
        to.zero(&stream).unwrap();
        assert_eq!(bytes(&to, &stream, BYTES), [0; BYTES], "capturing runs nothing");
        graph.launch(&stream).unwrap();
        let found = bytes(&to, &stream, BYTES);
        assert_eq!(found[..8], 3u64.to_ne_bytes());
        assert_eq!(found[8..16], 9u64.to_ne_bytes());
        assert_eq!(found[16..32], [0.5f32, 0.0, 1.0, -1.0].map(f32::to_ne_bytes).concat());
    }
}

#[test]
fn a_kernel_that_does_not_wait_itself_is_not_launched_before_its_turn() {
    let Some(context) = context().filter(|_| std::env::var_os("ENMASSE_TEST_GPU").is_none()) else { return };
    let stream = Stream::new(&context).unwrap();
    let to = Buffer::new(&context, "step", BYTES).unwrap();
    let kernel = set_step(&StepValues::default());
    let launched = |binary: Binary| {
        let function = Module::new(&context, binary).unwrap().function(&kernel.name).unwrap();
        // SAFETY: the argument is the kernel's, and the buffer lives until the stream has been waited for.
        let launched = unsafe { function.launch(&stream, kernel.grid, kernel.block, &kernel.pack(&|_| to.address())) };
        stream.wait().unwrap();
        launched
    };
    launched(text(".version 7.0")).unwrap();
    launched(cubin(context.properties.capability).unwrap()).unwrap();
    // A GPU would run it too early. The emulation knows which kernels wait.
    let error = launched(Binary { waits: true, ..text(".version 7.0") }).unwrap_err().to_string();
    assert!(error.contains("cuLaunchKernelEx"), "{error}");
}

#[test]
fn an_error_in_a_capture_ends_it() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let refused = Graph::capture(&stream, |_| Err(CudaError::Unsupported("no".into())));
    assert_eq!(refused.err(), Some(CudaError::Unsupported("no".into())));
    stream.wait().unwrap();
    // As the driver, the emulation allows neither a wait nor memory nor a module in a capture.
    type Recorded<'a> = &'a dyn Fn(&Stream) -> Result<(), CudaError>;
    let check = |recorded: Recorded, function: &str| {
        let error = Graph::capture(&stream, recorded).err().unwrap().to_string();
        assert!(error.contains(function) && error.contains("CAPTURE_UNSUPPORTED"), "{error}");
        stream.wait().unwrap();
    };
    check(&Stream::wait, "cuStreamSynchronize");
    check(&|_| Buffer::new(&context, "bytes", 5).map(drop), "cuMemAlloc");
    check(&|_| Module::new(&context, text(".version 7.0")).map(drop), "cuModuleLoadDataEx");
    Buffer::new(&context, "bytes", 5).unwrap();
}

#[test]
fn timestamps_measure_what_lies_between() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).unwrap();
    let [before, after] = [(); 2].map(|()| Timestamp::new(&context).unwrap());
    assert!(after.since(&before).is_err(), "never recorded");
    before.record(&stream).unwrap();
    after.record(&stream).unwrap();
    stream.wait().unwrap();
    assert!(!after.since(&before).unwrap().is_zero());
}
