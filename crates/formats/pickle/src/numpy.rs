//! NumPy arrays in pickles: a call of `_reconstruct` whose state holds shape, element type and bytes.

use std::rc::Rc;

use crate::{Call, Object, PickleError};

/// An array of bytes, the last dimension fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteArray {
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// One byte per element of the shape.
    pub bytes: Rc<[u8]>,
}

/// The array in `value`, which must be of `numpy.uint8`. Column-major order is converted to row-major. Module names of
/// all NumPy versions are accepted.
///
/// # Errors
/// [`PickleError::Unexpected`] if it is no NumPy array, is of another type, or does not have the bytes of its shape.
pub fn byte_array(value: &Object) -> Result<ByteArray, PickleError> {
    let no_array = || PickleError::Unexpected("not a NumPy array".to_owned());
    let call = value.as_call().ok_or_else(no_array)?;
    let parts = match call.function.as_global() {
        Some(("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct")) => reconstructed(call),
        Some(("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer")) => from_buffer(call),
        _ => None,
    };
    let Parts { shape, element, columns_first, bytes } = parts.ok_or_else(no_array)?;
    let element_type = element.as_call().and_then(|dtype| dtype.arguments.as_slice()?.first()?.as_str());
    // "B" is the name in very old versions.
    if !matches!(element_type, Some("u1" | "|u1" | "uint8" | "B")) {
        let found = element_type.unwrap_or("something unknown");
        return Err(PickleError::Unexpected(format!("a NumPy array of {found:?} instead of bytes (\"u1\")")));
    }
    let dimensions = shape.as_slice().ok_or_else(no_array)?.iter();
    let shape: Option<Vec<usize>> = dimensions.map(|dimension| usize::try_from(dimension.as_int()?).ok()).collect();
    let shape = shape.ok_or_else(no_array)?;
    let bytes = match bytes {
        Object::Bytes(bytes) => Rc::clone(bytes),
        encoded => encoded.to_bytes().ok_or_else(no_array)?.into(),
    };
    let expected = shape.iter().try_fold(1usize, |product, &dimension| product.checked_mul(dimension));
    if expected != Some(bytes.len()) {
        return Err(PickleError::Unexpected(format!(
            "a NumPy array of shape {shape:?} cannot have {} bytes",
            bytes.len()
        )));
    }
    let bytes = if columns_first { rows_first(&shape, &bytes) } else { bytes };
    Ok(ByteArray { shape, bytes })
}

struct Parts<'a> {
    shape: &'a Object,
    element: &'a Object,
    columns_first: bool,
    bytes: &'a Object,
}

/// `_reconstruct(ndarray, (0,), b"b")`, then state `(1, shape, dtype, columns first, bytes)`.
fn reconstructed(call: &Call) -> Option<Parts<'_>> {
    let [_version, shape, element, columns_first, bytes] = call.state.as_ref()?.as_slice()? else { return None };
    Some(Parts { shape, element, columns_first: columns_first.as_bool()?, bytes })
}

/// `_frombuffer(bytes, dtype, shape, "C" or "F")`, of protocol 5. The bytes may be wrapped in a call that would copy
/// them.
fn from_buffer(call: &Call) -> Option<Parts<'_>> {
    let [bytes, element, shape, order] = call.arguments.as_slice()? else { return None };
    Some(Parts { shape, element, columns_first: order.as_str()? == "F", bytes })
}

fn rows_first(shape: &[usize], bytes: &[u8]) -> Rc<[u8]> {
    // The step of each dimension in the bytes as they are stored: 1 for the first one.
    let steps: Vec<usize> = shape.iter().scan(1, |step, &len| Some(std::mem::replace(step, *step * len))).collect();
    let mut index = vec![0; shape.len()];
    let element = |_| {
        let at: usize = index.iter().zip(&steps).map(|(index, step)| index * step).sum();
        for (index, &len) in index.iter_mut().zip(shape).rev() {
            *index += 1;
            if *index < len {
                break;
            }
            *index = 0;
        }
        bytes[at]
    };
    (0..bytes.len()).map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(module: &str, shape: &[i64], element: &str, columns_first: bool, bytes: Object) -> Object {
        let shape = shape.iter().map(|&len| Object::Int(len)).collect();
        let element = Object::call(Object::global("numpy", "dtype"), [Object::from(element)]);
        let state = [Object::Int(1), shape, element, Object::Bool(columns_first), bytes].into_iter().collect();
        let call = Call {
            function: Object::global(module, "_reconstruct"),
            arguments: Object::None,
            state: Some(state),
            elements: Vec::new(),
            entries: Vec::new(),
        };
        Object::Call(call.into())
    }

    fn check(value: Object, expected: Result<(&[usize], &[u8]), &str>) {
        let found = byte_array(&value).map_err(|error| error.to_string());
        let expected = expected.map(|(shape, bytes)| ByteArray { shape: shape.to_vec(), bytes: bytes.into() });
        assert_eq!(found, expected.map_err(str::to_owned));
    }

    #[test]
    fn arrays_of_bytes() {
        let six = || Object::Bytes([1, 2, 3, 4, 5, 6].into());
        let rows: (&[usize], &[u8]) = (&[2, 3], &[1, 2, 3, 4, 5, 6]);
        check(array("numpy.core.multiarray", &[2, 3], "u1", false, six()), Ok(rows));
        check(array("numpy._core.multiarray", &[2, 3], "|u1", false, six()), Ok(rows));
        let columns: (&[usize], &[u8]) = (&[2, 3], &[1, 3, 5, 2, 4, 6]);
        check(array("numpy.core.multiarray", &[2, 3], "u1", true, six()), Ok(columns));
        check(array("numpy.core.multiarray", &[0, 3], "u1", true, Object::Bytes([].into())), Ok((&[0, 3], &[])));
        let latin = Object::call(Object::global("_codecs", "encode"), ["\u{ff}a", "latin1"].map(Object::from));
        check(array("numpy.core.multiarray", &[2], "u1", false, latin), Ok((&[2], &[255, b'a'])));
        let element = Object::call(Object::global("numpy", "dtype"), [Object::from("u1")]);
        let shape = [Object::Int(2), Object::Int(3)].into_iter().collect();
        let function = Object::global("numpy._core.numeric", "_frombuffer");
        check(Object::call(function, [six(), element, shape, Object::from("C")]), Ok(rows));
    }

    #[test]
    fn values_that_are_not_arrays_of_bytes() {
        let module = "numpy.core.multiarray";
        let bytes = || Object::Bytes([1, 2].into());
        check(Object::Int(1), Err("not a NumPy array"));
        check(array("os", &[2], "u1", false, bytes()), Err("not a NumPy array"));
        check(array(module, &[-2], "u1", false, bytes()), Err("not a NumPy array"));
        check(array(module, &[2], "u1", false, Object::None), Err("not a NumPy array"));
        check(array(module, &[1], "i8", false, bytes()), Err("a NumPy array of \"i8\" instead of bytes (\"u1\")"));
        check(array(module, &[3], "u1", false, bytes()), Err("a NumPy array of shape [3] cannot have 2 bytes"));
        let huge = [i64::MAX, i64::MAX];
        check(
            array(module, &huge, "u1", false, bytes()),
            Err("a NumPy array of shape [9223372036854775807, 9223372036854775807] cannot have 2 bytes"),
        );
    }
}
