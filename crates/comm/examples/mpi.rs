//! Times an all-reduce over MPI, beside the bare `MPI_Allreduce` and `MPI_Iallreduce` of the same library (Open MPI).
//!
//! ```text
//! cargo build --release -p enmasse-comm --example mpi
//! mpirun -n 2 -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 target/release/examples/mpi [BYTES,...]
//! ```
//!
//! The three run in turns, call by call, so that other programs slow them alike. Every rank is a node of its own, so all
//! bytes go by MPI. Prints one JSON line per size: the median milliseconds of rank 0.

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use enmasse_comm::{Group, MpiFamily, Rendezvous, TransportChoice};
use libloading::os::unix::Library;

/// Time spent on each size.
const BUDGET: Duration = Duration::from_secs(6);
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

fn measure(group: &Group, bare: &Bare, bytes: usize) -> Result<(), Box<dyn Error>> {
    let mut data = vec![0f32; bytes / 4];
    let mut call = |which: usize| -> Result<f64, Box<dyn Error>> {
        group.barrier()?;
        let start = Instant::now();
        match which {
            0 => group.all_reduce(&mut data)?,
            1 => bare.all_reduce(&mut data),
            _ => bare.all_reduce_non_blocking(&mut data),
        }
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    let start = Instant::now();
    for round in 0..15 {
        call(round % 3)?;
    }
    let mut rounds = [(BUDGET.as_secs_f64() / start.elapsed().as_secs_f64() * 5.0).clamp(10.0, 2000.0) as i64];
    group.broadcast(&mut rounds, 0)?;
    let mut times = [vec![], vec![], vec![]];
    for round in 0..3 * rounds[0] as usize {
        times[round % 3].push(call(round % 3)?);
    }
    let [ours, blocking, non_blocking] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    if group.is_main() {
        println!(
            "{{\"world_size\":{},\"bytes\":{bytes},\"all_reduce_ms\":{ours:.4},\"MPI_Allreduce_ms\":{blocking:.4},\
             \"MPI_Iallreduce_ms\":{non_blocking:.4},\"calls\":{}}}",
            group.world_size(),
            rounds[0]
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
        let (to, count) = (data.as_mut_ptr().cast(), data.len() as c_int);
        // SAFETY: declared as in Open MPI's header. 1 is its MPI_IN_PLACE. Nothing else calls MPI meanwhile.
        unsafe {
            let call = self.library.get::<AllReduce>(b"MPI_Allreduce").expect("Open MPI has it");
            assert_eq!(call(std::ptr::without_provenance(1), to, count, self.float, self.sum, self.world), 0);
        }
    }

    fn all_reduce_non_blocking(&self, data: &mut [f32]) {
        let (to, count) = (data.as_mut_ptr().cast(), data.len() as c_int);
        let (mut request, mut done) = (std::ptr::null_mut(), 0);
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
