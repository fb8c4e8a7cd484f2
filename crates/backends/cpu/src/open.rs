//! Opens the device that a rank requests: finds its level by name, its threads, and the cores to pin them to.

use enmasse_device::{Device, DeviceError, DeviceRequest};

use crate::{Cores, Cpu, CpuOptions, Isa};

/// The CPU device for one rank.
///
/// # Errors
/// The request has a number of the device, a level that this machine lacks or that there is not, or a number of threads that
/// is out of range.
pub fn open(request: &DeviceRequest) -> Result<Box<dyn Device>, DeviceError> {
    let DeviceRequest { ordinal, local_rank: _, threads, sharer, isa, exact, summation } = request;
    if ordinal.is_some() {
        return Err(DeviceError::Unsupported("cores have no numbers here: use cpu:N".into()));
    }
    let options = CpuOptions {
        threads: request.own_threads(),
        isa: Some(level(isa.as_deref())?),
        exact: *exact,
        cores: Cores::available().and_then(|cores| own_cores(cores, threads, *sharer)),
        summation: *summation,
    };
    Ok(Box::new(Cpu::new(options)?))
}

/// The instruction-set level with this name, or the machine's best.
fn level(name: Option<&str>) -> Result<Isa, DeviceError> {
    let (best, Some(name)) = (Isa::detect(), name) else { return Ok(Isa::detect()) };
    match Isa::ALL.into_iter().find(|isa| isa.name() == name) {
        Some(isa) if isa.available() => Ok(isa),
        Some(isa) => Err(DeviceError::Unsupported(format!(
            "`isa = {isa}`: this machine has no {isa}; its best is `isa = {best}`"
        ))),
        None => {
            let names = Isa::ALL.map(Isa::name).join(" or ");
            Err(DeviceError::Unsupported(format!("`isa = {}`: must be {names}", name.escape_default())))
        }
    }
}

/// A core for each thread of a rank, if the ranks of this machine together use all the cores that they may run on.
/// `threads` holds the number of threads of each rank. With fewer threads, another program might choose the same cores;
/// with more, some threads would wait for each other.
fn own_cores(available: Cores, threads: &[usize], rank: usize) -> Option<Cores> {
    let sum = |threads: &[usize]| threads.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
    let (before, rest) = threads.split_at_checked(rank)?;
    available.part(sum(before), *rest.first()?).filter(|_| sum(threads) == available.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_by_name() {
        let check = |name: Option<&str>, expected: Result<Isa, &str>| match (level(name), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(found), Err(expected)) => {
                let found = found.to_string();
                assert!(found.starts_with(expected) && found.lines().count() == 1, "{found}");
            }
            (found, _) => panic!("{name:?}: {found:?}"),
        };
        for isa in Isa::ALL {
            let lacking = format!("`isa = {isa}`: this machine has no {isa}; its best is `isa = {}`", Isa::detect());
            check(Some(isa.name()), if isa.available() { Ok(isa) } else { Err(&lacking) });
        }
        check(None, Ok(Isa::detect()));
        check(Some("sse2"), Err("`isa = sse2`: must be portable or avx2"));
        check(Some("AVX2"), Err("`isa = AVX2`: must be portable or avx2"));
        check(Some("avx\n"), Err("`isa = avx\\n`: must be portable or avx2"));
    }

    #[test]
    fn ranks_that_use_all_cores_are_pinned() {
        let all = Cores::available().unwrap();
        let cores = all.count();
        let check = |threads: &[usize], expected: &[Option<Cores>]| {
            let found: Vec<_> = (0..threads.len()).map(|rank| own_cores(all, threads, rank)).collect();
            assert_eq!(found, expected, "{threads:?} of {cores}");
        };
        check(&[cores], &[Some(all)]);
        check(&vec![1; cores], &(0..cores).map(|core| all.part(core, 1)).collect::<Vec<_>>());
        check(&[1, cores], &[None, None]);
        check(&[cores + 1], &[None]);
        check(&[usize::MAX, 1], &[None, None]);
        if cores > 1 {
            check(&[cores - 1], &[None]);
            check(&[1, cores - 1], &[all.part(0, 1), all.part(1, cores - 1)]);
        }
        assert_eq!(own_cores(all, &[cores], 1), None);
    }
}
