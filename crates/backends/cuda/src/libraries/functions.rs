//! Tables of functions: a struct of function pointers that are looked up by name.

/// Declares a struct with a field for each function of a library, and `load`, which looks all of them up. Functions that are
/// `checked` return a status, of which 0 is success. Each is also a method, which turns another status into an error, for which
/// the table's `words` has the library's own.
///
/// ```text
/// functions! {
///     /// What this crate calls of the driver.
///     pub(crate) struct DriverFunctions {
///         fn cuGetErrorName(error: c_int, text: *mut *const c_char) -> c_int;
///     }
///     checked {
///         fn cuMemAlloc_v2(address: *mut u64, bytes: usize);
///     }
/// }
/// let driver = DriverFunctions::load(libraries.load(Library::Driver)?)?;
/// // SAFETY: ...
/// unsafe { driver.cuMemAlloc_v2(&mut address, 16) }?;
/// let status = unsafe { (driver.cuMemAlloc_v2)(&mut address, 16) };
/// ```
///
/// The declarations are the promise: each must match the library's header.
macro_rules! functions {
    ($(#[$attribute:meta])* $visible:vis struct $Table:ident {
        $(fn $function:ident($($argument:ident: $Argument:ty),* $(,)?) -> $Result:ty;)*
    } $(checked {
        $(fn $checked:ident($($value:ident: $Value:ty),* $(,)?);)*
    })?) => {
        $(#[$attribute])*
        #[allow(non_snake_case)]
        #[derive(Clone, Debug)]
        $visible struct $Table {
            /// The library. Not every table is asked for it, or for its file.
            #[allow(dead_code)]
            pub library: $crate::libraries::Library,
            /// The library's file.
            #[allow(dead_code)]
            pub path: std::path::PathBuf,
            $(pub $function: unsafe extern "C" fn($($argument: $Argument),*) -> $Result,)*
            $($(pub $checked: unsafe extern "C" fn($($value: $Value),*) -> std::ffi::c_int,)*)?
        }

        impl $Table {
            /// Looks all functions up. The library stays in the process.
            ///
            /// # Errors
            /// [`CudaError::Function`](crate::error::CudaError::Function) names the first one that is missing.
            $visible fn load(library: $crate::libraries::Loaded) -> Result<Self, $crate::error::CudaError> {
                // SAFETY: the functions are declared as in the library's header, and stay loaded.
                unsafe {
                    Ok($Table {
                        $($function: std::mem::transmute::<
                            *const (),
                            unsafe extern "C" fn($($argument: $Argument),*) -> $Result,
                        >(library.address(stringify!($function))?),)*
                        $($($checked: std::mem::transmute::<
                            *const (),
                            unsafe extern "C" fn($($value: $Value),*) -> std::ffi::c_int,
                        >(library.address(stringify!($checked))?),)*)?
                        library: library.library,
                        path: library.keep(),
                    })
                }
            }
        }

        $(
            #[allow(dead_code, non_snake_case, clippy::too_many_arguments)]
            impl $Table {
                /// The error of a call. Its function's name may end in the version of its arguments.
                pub fn error(&self, function: &'static str, status: std::ffi::c_int) -> $crate::error::CudaError {
                    let library = self.library;
                    let function = function.trim_end_matches("_v2");
                    $crate::error::CudaError::Call { library, function, why: self.words(status) }
                }

                $(
                    pub unsafe fn $checked(&self, $($value: $Value),*) -> Result<(), $crate::error::CudaError> {
                        // SAFETY: the caller's promise.
                        match unsafe { (self.$checked)($($value),*) } {
                            0 => Ok(()),
                            status => Err(self.error(stringify!($checked), status)),
                        }
                    }
                )*
            }
        )?
    };
}

pub(crate) use functions;
