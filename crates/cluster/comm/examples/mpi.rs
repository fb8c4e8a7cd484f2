//! Times an all-reduce over MPI, beside the bare `MPI_Allreduce` and `MPI_Iallreduce` of the same library (Open MPI).
//!
//! ```text
//! cargo build --release -p enmasse-comm --example mpi
//! mpirun -n 2 -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 target/release/examples/mpi [BYTES,...]
//! ```
//!
//! The three run in turns, a block of calls each, so that other programs slow them alike. A call follows the one before at
//! once, as in the usual benchmarks of MPI. Every rank is a node of its own, so all bytes go by MPI. Prints one JSON line
//! per size: the milliseconds of a call in the median block of rank 0.

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use enmasse_comm::{Group, MpiFamily, Rendezvous, TransportChoice};
use libloading::os::unix::Library;

/// About how long a block of calls takes.
const BLOCK: Duration = Duration::from_millis(100);
/// Blocks of each way.
const BLOCKS: usize = 24;
const SIZES: [usize; 8] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20];

fn main() -> Result<(), Box<dyn Error>> {
    let sizes = match std::env::args().nth(1) {
        Some(list) => list.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?,
        None => SIZES.to_vec(),
    };
    let variable = |name: &str| {
        let of_mpirun = match name {
            "RANK" => "OMPI_COMM_WORLD_RANK",
            "WORLD_SIZE" => "OMPI_COMM_WORLD_SIZE",
            other => other,
        };
        std::env::var(of_mpirun).ok()
    };
    let mut rendezvous = Rendezvous::from_variables(&variable)?;
    rendezvous.transport = TransportChoice::Mpi(MpiFamily::OpenMpi);
    rendezvous.node = Some(rendezvous.rank.to_string());
    let group = rendezvous.join()?;
    if group.is_main() {
        group.ways().iter().for_each(|way| println!("{way}"));
    }
    let bare = Bare::load()?;
    sizes.iter().try_for_each(|&bytes| measure(&group, &bare, bytes))
}

/// One way to add up the data over all ranks.
#[derive(Clone, Copy)]
enum Way {
    Ours,
    Blocking,
    NonBlocking,
}

impl Way {
    const ALL: [Way; 3] = [Way::Ours, Way::Blocking, Way::NonBlocking];
}

fn measure(group: &Group, bare: &Bare, bytes: usize) -> Result<(), Box<dyn Error>> {
    // As a program's gradients are.
    let mut memory = Arc::new(vec![0f32; bytes / size_of::<f32>()]);
    let start = Arc::get_mut(&mut memory).ok_or("the memory is shared")?.as_mut_ptr();
    // SAFETY: the vector owns these bytes, and nothing changes its length.
    unsafe { group.register_memory(&memory, start.cast(), size_of_val(&memory[..])) };
    // SAFETY: nothing else uses the memory.
    let data = unsafe { std::slice::from_raw_parts_mut(start, bytes / size_of::<f32>()) };
    let mut block = |way: Way, calls: i64| -> Result<f64, Box<dyn Error>> {
        group.barrier()?;
        let start = Instant::now();
        for _ in 0..calls {
            match way {
                Way::Ours => group.all_reduce(data)?,
                Way::Blocking => bare.all_reduce(data),
                Way::NonBlocking => bare.all_reduce_non_blocking(data),
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e3 / calls as f64)
    };
    // The first calls connect the ranks and touch memory.
    Way::ALL.iter().try_for_each(|&way| block(way, 3).map(drop))?;
    let slowest = Way::ALL
        .iter()
        .map(|&way| block(way, 5))
        .try_fold(0.0, |slowest, time| time.map(|time| f64::max(slowest, time)))?;
    let mut calls = [(BLOCK.as_secs_f64() * 1e3 / slowest).clamp(1.0, 5000.0) as i64];
    group.broadcast(&mut calls, 0)?;
    let mut times = [vec![], vec![], vec![]];
    for chunk in 0..BLOCKS {
        // Each way follows each other one as often.
        for turn in 0..3 {
            let at = if chunk % 2 == 0 { turn } else { 2 - turn };
            times[(at + chunk / 2) % 3].push(block(Way::ALL[(at + chunk / 2) % 3], calls[0])?);
        }
    }
    let [ours, blocking, non_blocking] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    if group.is_main() {
        println!(
            "{{\"world_size\":{},\"bytes\":{bytes},\"all_reduce_ms\":{ours:.4},\"MPI_Allreduce_ms\":{blocking:.4},\
             \"MPI_Iallreduce_ms\":{non_blocking:.4},\"blocks\":{BLOCKS},\"calls\":{}}}",
            group.world_size(),
            calls[0]
        );
    }
    Ok(())
}

type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, c_int, *mut c_void, *mut c_void, *mut c_void) -> c_int;
type StartAllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> c_int;
type Test = unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *mut c_void) -> c_int;

/// Open MPI's own functions, in the library that the group has loaded and started.
struct Bare {
    library: Library,
    float: *mut c_void,
    sum: *mut c_void,
    world: *mut c_void,
}

impl Bare {
    fn load() -> Result<Self, Box<dyn Error>> {
        // SAFETY: the library is in the process already. Its objects are known by their addresses.
        unsafe {
            let library = Library::new("libmpi.so.40")?;
            let object = |name: &str| library.get::<*mut c_void>(name.as_bytes()).map(|symbol| symbol.into_raw());
            let (float, sum) = (object("ompi_mpi_float")?, object("ompi_mpi_op_sum")?);
            let world = object("ompi_mpi_comm_world")?;
            Ok(Bare { library, float, sum, world })
        }
    }

    fn all_reduce(&self, data: &mut [f32]) {
        let to = data.as_mut_ptr().cast();
        let count = data.len() as c_int;
        // SAFETY: declared as in Open MPI's header. 1 is its MPI_IN_PLACE. Nothing else calls MPI meanwhile.
        unsafe {
            let call = self.library.get::<AllReduce>(b"MPI_Allreduce").expect("Open MPI has it");
            assert_eq!(call(std::ptr::without_provenance(1), to, count, self.float, self.sum, self.world), 0);
        }
    }

    fn all_reduce_non_blocking(&self, data: &mut [f32]) {
        let to = data.as_mut_ptr().cast();
        let count = data.len() as c_int;
        let mut request = std::ptr::null_mut();
        let mut done = 0;
        // SAFETY: as above; the data outlives the request.
        unsafe {
            let start = self.library.get::<StartAllReduce>(b"MPI_Iallreduce").expect("Open MPI has it");
            let test = self.library.get::<Test>(b"MPI_Test").expect("Open MPI has it");
            let in_place = std::ptr::without_provenance(1);
            assert_eq!(start(in_place, to, count, self.float, self.sum, self.world, &mut request), 0);
            while done == 0 {
                assert_eq!(test(&mut request, &mut done, std::ptr::null_mut()), 0);
            }
        }
    }
}
