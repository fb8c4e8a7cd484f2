//! The memory of a program on the emulated card, whose free bytes all tests of a process share: so this one is alone.

use enmasse_cuda::libraries::Libraries;
use enmasse_device::{DeviceRequest, Hosting};
use enmasse_graph::{CompileOptions, Conv, Tensor};

fn small(x: Tensor) -> Tensor {
    let x = x.conv2d("conv", Conv::new(6, 3).padding(1)).batch_norm("bn").relu();
    x.adaptive_avg_pool([2, 2]).flatten().linear("fc", 4)
}

#[test]
fn memory_is_what_was_stated() {
    let Some(folder) = enmasse_emulation::folder() else { return };
    let libraries = Libraries::in_folders(&[folder.to_owned()]);
    let device = enmasse_cuda::open_with(&libraries, &DeviceRequest::default()).unwrap();
    let free = || device.free_memory().unwrap().unwrap();
    for shards in [1, 3] {
        let options = CompileOptions { shards, ..CompileOptions::new("small", 3, 8, 4) };
        let plans = device.target().compile(&small, &options).unwrap();
        let stated = device.memory(&plans, &Hosting::new(&plans, None).unwrap()).unwrap();
        let before = free();
        let program = device.compile(plans, None).unwrap();
        assert_eq!(before - free(), stated.total(), "{shards} shards");
        drop(program);
        assert_eq!(free(), before);
    }
}
