//! Communicators over the emulated NCCL, or over the machine's own as `scripts/gpu-check` runs these tests; and our declarations
//! beside NVIDIA's.

use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use enmasse_comm::Group;

use super::communicator::identifier;
use super::sys::{API_MAGIC, BFLOAT16, Config, FLOAT32, IN_PROGRESS, REMOTE_ERROR, SUM, UNDEFINED};
use super::*;
use crate::driver::{Buffer, Context, Event, Found, Graph, Stream};

/// The first GPU with its libraries: the machine's own with `ENMASSE_TEST_GPU=1`. `None` without a compiler: the test is then in
/// the table.
fn libraries() -> Option<Libraries> {
    match std::env::var_os("ENMASSE_TEST_GPU") {
        Some(_) => Some(Libraries::gather()),
        None => Some(Libraries::in_folders(&[enmasse_emulation::folder()?.to_owned()])),
    }
}

fn gpu(libraries: &Libraries) -> Arc<Context> {
    let driver = crate::driver::Functions::load(libraries.load(Library::Driver).unwrap()).unwrap();
    Context::open(Found::look(Arc::new(driver), 0).unwrap()).unwrap()
}

/// The sum of f32 over all ranks.
fn sum(of: &Buffer, count: usize) -> Operation {
    Operation::AllReduce { at: of.address(), count, dtype: enmasse_tensor::DType::F32 }
}

#[test]
fn versions_as_nccl_numbers_them() {
    let version = |number: usize| Version::new(number, FIVE_DIGITS);
    let check = |number: usize, expected: &str| assert_eq!(version(number).to_string(), expected);
    check(2708, "2.7.8");
    check(20903, "2.9.3");
    check(22703, "2.27.3");
    check(23200, "2.32.0");
    assert!(version(21806) < OLDEST && OLDEST <= version(21903));
}

#[test]
fn a_library_that_is_not_nccl_is_one_line() {
    let Some(emulation) = enmasse_emulation::folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(emulation.join("libcuda.so.1"), folder.path().join("libnccl.so.2")).unwrap();
    let error = Nccl::load(&Libraries::in_folders(&[folder.path().to_owned()])).unwrap_err().to_string();
    let path = folder.path().join("libnccl.so.2");
    let expected = format!("NCCL ({}) has no function ncclGetVersion: its version is too old", path.display());
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn a_world_of_one_sums_within_a_graph() {
    let Some(libraries) = libraries() else { return };
    let context = gpu(&libraries);
    let nccl = Arc::new(Nccl::load(&libraries).unwrap());
    let communicator = Communicator::new(&nccl, &context, &Group::single(), || true).unwrap();
    let [compute, beside] = [(); 2].map(|()| Stream::new(&context).unwrap());
    let [begin, end] = [(); 2].map(|()| Event::new(&context).unwrap());
    let numbers: Vec<u8> = (0..1000).flat_map(|number| (number as f32).to_ne_bytes()).collect();
    let own = nccl.allocate(&context, "numbers", numbers.len()).unwrap();
    communicator.register(&own).unwrap();
    let all = Buffer::new(&context, "numbers", numbers.len()).unwrap();
    own.write(&compute, 0, &numbers).unwrap();
    let collectives = |compute: &Stream| -> Result<(), enmasse_device::DeviceError> {
        begin.record(compute)?;
        beside.wait_for(&begin)?;
        // SAFETY: the buffers live until the stream has been waited for.
        unsafe {
            communicator.run(&sum(&own, 1000), &beside)?;
            let gather = Operation::AllGather { from: own.address(), to: all.address(), count: 1000 };
            communicator.run(&gather, &beside)?;
        }
        end.record(&beside)?;
        Ok(compute.wait_for(&end)?)
    };
    // NCCL connects its ranks in the first collectives.
    collectives(&compute).unwrap();
    compute.wait().unwrap();
    let graph = Graph::capture(&compute, collectives).unwrap();
    for _ in 0..2 {
        all.zero(&compute).unwrap();
        graph.launch(&compute).unwrap();
        let mut found = vec![0; numbers.len()];
        all.read(&compute, 0, &mut found).unwrap();
        assert_eq!(found, numbers);
    }
    drop(graph);
    // NCCL may use registered memory until it ends. The emulation ends the process otherwise.
    drop(communicator);
    drop(own);
}

#[test]
fn memory_that_nccl_lacks_is_named() {
    let Some(libraries) = libraries() else { return };
    let context = gpu(&libraries);
    let nccl = Arc::new(Nccl::load(&libraries).unwrap());
    let bytes = 1 << 50;
    let error = nccl.allocate(&context, "gradients", bytes).err();
    assert_eq!(error, Some(CudaError::Memory { what: "gradients".into(), bytes }));
    assert_eq!(nccl.allocate(&context, "gradients", 0).unwrap().bytes(), 0);
}

#[test]
fn a_rank_that_leaves_before_it_joins_is_the_cause() {
    let Some(libraries) = libraries().filter(|_| std::env::var_os("ENMASSE_TEST_GPU").is_none()) else { return };
    let context = gpu(&libraries);
    let nccl = Arc::new(Nccl::load(&libraries).unwrap());
    let [first, second] = Group::threads(2).unwrap().try_into().unwrap();
    let (sender, failing) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // It takes part in the identifier, and goes.
            identifier(&nccl, &second).map(drop).unwrap();
            let joins =
                || first.flight_recorder().record().operations.iter().any(|o| o.operation.starts_with("ncclComm"));
            while !joins() {
                std::thread::yield_now();
            }
            second.abort(second.own_cause(enmasse_comm::CauseKind::Exited, "it was killed"));
        });
        let made = Communicator::new(&nccl, &context, &first, move || sender.send(()).is_ok());
        let error = made.err().unwrap().to_string();
        assert!(error.starts_with("rank 1 ") && error.ends_with("it was killed"), "{error}");
        failing.recv().unwrap();
    });
}

#[test]
fn an_abort_waited_for_ever_for_a_gpu_that_was_full() {
    let Some(libraries) = libraries() else { return };
    let context = gpu(&libraries);
    let nccl = Arc::new(Nccl::load(&libraries).unwrap());
    let group = Group::single();
    let communicator = Communicator::new(&nccl, &context, &group, || false).unwrap();
    let stream = Stream::new(&context).unwrap();
    let number = Buffer::new(&context, "a number", 4).unwrap();
    group.abort(group.own_cause(enmasse_comm::CauseKind::Error, "the disk is full"));
    let start = Instant::now();
    // SAFETY: the buffer lives until the stream has been waited for.
    while unsafe { communicator.run(&sum(&number, 1), &stream) }.is_ok() {
        assert!(start.elapsed() < Duration::from_secs(60), "NCCL was not aborted");
        stream.wait().unwrap();
    }
    assert!(communicator.is_aborted_unready());
}

#[test]
fn an_abort_that_never_returned_kept_the_rank() {
    if enmasse_emulation::folder().is_none() || std::env::var_os("ENMASSE_TEST_GPU").is_some() {
        return;
    }
    if std::env::var_os("EMULATED_NCCL_STUCK").is_none() {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["nccl::tests::an_abort_that_never_returned_kept_the_rank", "--exact"]);
        let ended = again.env("EMULATED_NCCL_STUCK", "1").output().unwrap();
        let text = [ended.stdout, ended.stderr].concat();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&text));
        return;
    }
    let libraries = libraries().unwrap();
    let context = gpu(&libraries);
    let nccl = Arc::new(Nccl::load(&libraries).unwrap());
    let group = Group::single();
    let communicator = Communicator::new(&nccl, &context, &group, || true).unwrap();
    group.abort(group.own_cause(enmasse_comm::CauseKind::Error, "the disk is full"));
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        drop(communicator);
        sender.send(())
    });
    ended.recv_timeout(Duration::from_secs(60)).unwrap();
}

/// The header comes with the library in NVIDIA's wheel. What it includes of CUDA are two types.
#[test]
fn declarations_are_those_of_the_header() {
    let Some(folder) = test_support::cuda() else { return };
    let nccl = Nccl::load(&Libraries::in_folders(std::slice::from_ref(&folder))).unwrap();
    let includes = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(includes.path().join(name), text).unwrap();
    write(
        "cuda_runtime.h",
        "#include <stdint.h>\ntypedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n",
    );
    ["cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"].iter().for_each(|name| write(name, ""));
    let equal = |ours: String, theirs: &str| format!("static_assert({ours} == {theirs}, \"{theirs}\");\n");
    let number = |ours: usize, theirs: &str| equal(ours.to_string(), theirs);
    let offset = |ours: usize, field: &str| number(ours, &format!("offsetof(ncclConfig_t, {field})"));
    let [major, minor, patch] = nccl.version().0;
    let text = [
        "#include <stddef.h>\n#include \"nccl.h\"\n".to_owned(),
        number(size_of::<UniqueId>(), "sizeof(ncclUniqueId)"),
        offset(std::mem::offset_of!(Config, size), "size"),
        offset(std::mem::offset_of!(Config, magic), "magic"),
        offset(std::mem::offset_of!(Config, version), "version"),
        offset(std::mem::offset_of!(Config, blocking), "blocking"),
        offset(std::mem::offset_of!(Config, cluster_size), "cgaClusterSize"),
        offset(std::mem::offset_of!(Config, min_blocks), "minCTAs"),
        offset(std::mem::offset_of!(Config, max_blocks), "maxCTAs"),
        offset(std::mem::offset_of!(Config, network), "netName"),
        equal(format!("({UNDEFINED})"), "NCCL_CONFIG_UNDEF_INT"),
        equal(format!("{API_MAGIC}u"), "NCCL_API_MAGIC"),
        number(SUCCESS as usize, "ncclSuccess"),
        number(REMOTE_ERROR as usize, "ncclRemoteError"),
        number(IN_PROGRESS as usize, "ncclInProgress"),
        number(FLOAT32 as usize, "ncclFloat32"),
        number(BFLOAT16 as usize, "ncclBfloat16"),
        number(SUM as usize, "ncclSum"),
        number(major * 10_000 + minor * 100 + patch, "NCCL_VERSION_CODE"),
    ];
    let source = includes.path().join("declarations.cpp");
    std::fs::write(&source, text.concat()).unwrap();
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-fsyntax-only", "-I"]).arg(includes.path()).arg("-I").arg(&folder).arg(&source);
    let checked = compiler.output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
