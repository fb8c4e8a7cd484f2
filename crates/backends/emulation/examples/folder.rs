//! Prints the folder of the emulated libraries, for `ENMASSE_CUDA_LIBRARIES`. Status 1 without a C++ compiler.

fn main() -> std::process::ExitCode {
    let Some(folder) = enmasse_emulation::folder() else { return std::process::ExitCode::FAILURE };
    println!("{}", folder.display());
    std::process::ExitCode::SUCCESS
}
