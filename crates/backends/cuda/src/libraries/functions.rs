//! Tables of functions: a struct of function pointers that are looked up by name.

/// Declares a struct with a field for each function of a library, and `load`, which looks all of them up:
///
/// ```text
/// functions! {
///     /// What this crate calls of the driver.
///     pub(crate) struct DriverFunctions {
///         fn cuInit(flags: u32) -> i32;
///         fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> i32;
///     }
/// }
/// let driver = DriverFunctions::load(libraries.load(Library::Driver)?)?;
/// // SAFETY: ...
/// let status = unsafe { (driver.cuInit)(0) };
/// ```
///
/// The declarations are the promise: each must match the library's header.
macro_rules! functions {
    ($(#[$attribute:meta])* $visible:vis struct $Table:ident {
        $(fn $function:ident($($argument:ident: $Argument:ty),* $(,)?) -> $Result:ty;)*
    }) => {
        $(#[$attribute])*
        #[allow(non_snake_case)]
        #[derive(Clone, Debug)]
        $visible struct $Table {
            /// The library's file. Not every table is asked for it.
            #[allow(dead_code)]
            pub path: std::path::PathBuf,
            $(pub $function: unsafe extern "C" fn($($argument: $Argument),*) -> $Result,)*
        }

        impl $Table {
            /// Looks all functions up. The library stays in the process.
            ///
            /// # Errors
            /// [`CudaError::Function`](crate::error::CudaError::Function) names the first one that is missing.
            $visible fn load(library: $crate::libraries::Loaded) -> Result<Self, $crate::error::CudaError> {
                Ok($Table {
                    $(
                        $function: {
                            let address = library.address(stringify!($function))?;
                            // SAFETY: the function is declared as in the library's header, and stays loaded.
                            unsafe {
                                std::mem::transmute::<
                                    *const (),
                                    unsafe extern "C" fn($($argument: $Argument),*) -> $Result,
                                >(address)
                            }
                        },
                    )*
                    path: library.keep(),
                })
            }
        }
    };
}

pub(crate) use functions;
