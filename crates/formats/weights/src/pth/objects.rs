//! From the pickled object to named views: finds the dictionary with the state, and reads tensors as PyTorch pickles
//! them.

use enmasse_pickle::{Call, Object};

use super::storage::TensorView;
use crate::element::ElementType;

/// The keys under which timm's and torchvision's scripts keep averages of a model's state, in the order in which timm's
/// `load_checkpoint` takes them, before any other.
const AVERAGES: [&str; 2] = ["state_dict_ema", "model_ema"];
/// The keys under which training scripts keep a model's state along with other data.
const WRAPPING: [&str; 3] = ["state_dict", "model_state_dict", "model"];
/// Limit of nested dictionaries.
const WRAPPED: usize = 4;
/// Limit of the dimensions of a PyTorch tensor.
const DIMENSIONS: usize = 64;
const SAVE_STATE: &str = "in PyTorch, save its state instead: torch.save(model.state_dict(), FILE)";

/// The keys and values of a dictionary.
type Entries = [(Object, Object)];

/// The storage of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StorageKey {
    pub key: String,
    /// `None` for a storage of bytes, whose tensors have the element type.
    pub element: Option<ElementType>,
    /// Number of elements (of the storage's type) before its first, if it is itself a part of another storage.
    pub offset: u64,
}

/// The dictionary of tensors in the object, extracted from the other data of a training script, and the key of the averages if
/// it is these.
pub(super) fn state_dict(object: &Object) -> Result<(&Entries, Option<&'static str>), String> {
    let (mut object, mut averages) = (object, None);
    for _ in 0..WRAPPED {
        let Some(entries) = object.as_dict() else { return Err(what_it_is(object)) };
        // A module is accepted here too, and refused in the next round.
        let wraps = |value: &&Object| value.as_dict().is_some() || is_module(value);
        let averaged = |key: &'static str| Some((key, object.get(key).filter(|value| has_tensors(value))?));
        if let Some((key, inner)) = AVERAGES.into_iter().find_map(averaged) {
            (object, averages) = (inner, Some(key));
        } else if let Some(inner) = WRAPPING.iter().filter_map(|key| object.get(key)).find(wraps) {
            object = inner;
        } else if has_tensors(object) {
            return Ok((entries, averages));
        } else {
            // Under the script's own key, if it is unambiguous.
            let mut inner =
                entries.iter().map(|(_, value)| value).filter(|value| has_tensors(value) || is_module(value));
            let (Some(only), None) = (inner.next(), inner.next()) else {
                let keys: Vec<&str> = entries.iter().filter_map(|(key, _)| key.as_str()).take(5).collect();
                return Err(format!("holds no weights at the top or under {WRAPPING:?}; the first keys are {keys:?}"));
            };
            object = only;
        }
    }
    Err("holds nested dictionaries, but no weights".to_owned())
}

fn has_tensors(value: &Object) -> bool {
    value.as_dict().is_some_and(|entries| entries.iter().any(|(_, value)| is_tensor(value)))
}

/// Whether a value is an object of some program with a state like that of PyTorch's modules.
fn is_module(value: &Object) -> bool {
    let state = value.as_call().and_then(|call| call.state.as_ref());
    state.is_some_and(|state| ["_modules", "_parameters"].iter().any(|key| state.get(key).is_some()))
}

/// The reason why an object is not a dictionary of tensors.
fn what_it_is(object: &Object) -> String {
    let class = object.as_call().and_then(|call| match &call.function {
        // The legacy form keeps the source text of a module's class next to its name.
        Object::Persistent(key) => key.as_slice()?.get(1)?.as_global(),
        function => function.as_global(),
    });
    match class {
        _ if is_tensor(object) => format!("holds a single tensor without a name; {SAVE_STATE}"),
        Some((module, class)) if is_module(object) => {
            format!("holds a whole module ({module}.{class}), which only its own program can open; {SAVE_STATE}")
        }
        Some((module, name)) => format!("holds an object of {module}.{name} instead of a dictionary of tensors"),
        None => "holds no dictionary of tensors".to_owned(),
    }
}

fn is_tensor(value: &Object) -> bool {
    value.as_call().is_some_and(|call| maker(call).is_some())
}

/// The function that makes a tensor, if this is a call of one.
fn maker(call: &Call) -> Option<&str> {
    match call.function.as_global()? {
        ("torch._utils" | "torch._tensor", name) if name.starts_with("_rebuild_") => Some(name),
        ("torch.nn.parameter", name @ ("Parameter" | "Buffer")) => Some(name),
        ("torch.autograd.variable" | "torch.autograd", name @ "Variable") => Some(name),
        _ => None,
    }
}

/// The view described by a value; `None` if it is not a tensor. An unsupported tensor is an error, whose text continues
/// "tensor X …".
pub(super) fn tensor(value: &Object) -> Result<Option<TensorView>, String> {
    let Some(call) = value.as_call() else { return Ok(None) };
    let Some(maker) = maker(call) else { return Ok(None) };
    let arguments = call.arguments.as_slice().unwrap_or_default();
    let refuse = |what: &str| Err(format!("is {what}, which is not supported; save it as a plain tensor"));
    match (maker, arguments) {
        ("_rebuild_tensor", [storage, offset, shape, stride]) => {
            view(storage, offset, shape, stride, None, None).map(Some)
        }
        ("_rebuild_tensor_v2", [storage, offset, shape, stride, _grad, _hooks, rest @ ..]) => {
            view(storage, offset, shape, stride, None, rest.first()).map(Some)
        }
        ("_rebuild_tensor_v3", [storage, offset, shape, stride, _grad, _hooks, dtype, rest @ ..]) => {
            view(storage, offset, shape, stride, Some(dtype), rest.first()).map(Some)
        }
        ("_rebuild_parameter" | "_rebuild_parameter_with_state" | "Parameter" | "Buffer" | "Variable", [data, ..]) => {
            tensor(data)
        }
        // A subclass wraps the call that makes the tensor.
        ("_rebuild_from_type" | "_rebuild_from_type_v2", [function, _class, arguments, ..]) => {
            let inner = arguments.as_slice().unwrap_or_default().iter().cloned();
            tensor(&Object::call(function.clone(), inner))
        }
        ("_rebuild_qtensor", _) => refuse("quantized"),
        ("_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor", _) => refuse("sparse"),
        ("_rebuild_nested_tensor", _) => refuse("nested"),
        ("_rebuild_meta_tensor_no_storage", _) => refuse("without values (meta)"),
        (other, _) => refuse(&format!("made by {other}")),
    }
}

fn view(
    storage: &Object,
    offset: &Object,
    shape: &Object,
    stride: &Object,
    dtype: Option<&Object>,
    metadata: Option<&Object>,
) -> Result<TensorView, String> {
    // Lazily conjugated or negated: the bits differ from the values.
    if metadata.and_then(Object::as_dict).is_some_and(|metadata| !metadata.is_empty()) {
        return Err("has special bits (conj or neg), which are not supported; save it after .resolve_neg()".to_owned());
    }
    let Object::Persistent(key) = storage else {
        return Err("is damaged: it has no storage".to_owned());
    };
    let storage = storage_key(key)?.ok_or("is damaged: its storage is malformed")?;
    let element = match (dtype, storage.element) {
        (Some(dtype), _) => element_of_dtype(dtype)?,
        (None, Some(element)) => element,
        (None, None) => return Err("is damaged: its element type is missing".to_owned()),
    };
    let numbers = |value: &Object| -> Option<Vec<u64>> {
        value.as_slice()?.iter().map(|value| u64::try_from(value.as_int()?).ok()).collect()
    };
    let damaged = || "is damaged: its shape, stride or offset is invalid".to_owned();
    let (shape, stride) = numbers(shape).zip(numbers(stride)).ok_or_else(damaged)?;
    if shape.len() != stride.len() || shape.len() > DIMENSIONS {
        return Err(damaged());
    }
    let shape = shape.into_iter().map(usize::try_from).collect::<Result<_, _>>().map_err(|_| damaged())?;
    let own = offset.as_int().and_then(|offset| u64::try_from(offset).ok()).ok_or_else(damaged)?;
    let offset = own.checked_add(storage.offset).ok_or_else(damaged)?;
    Ok(TensorView { storage: storage.key, element, offset, shape, stride })
}

/// The storage of a persistent key: `("storage", class, key, device, elements)`. In the legacy form `None` follows, or
/// the part of another storage that it is: `(key, offset, elements)`. `None` for anything that is not a storage.
pub(super) fn storage_key(key: &Object) -> Result<Option<StorageKey>, String> {
    let Some([kind, class, key, _device, _elements, rest @ ..]) = key.as_slice() else { return Ok(None) };
    if kind.as_str() != Some("storage") {
        return Ok(None);
    }
    let element = element_of_class(class)?;
    let key = key.as_str().ok_or("is damaged: its storage has no key")?.to_owned();
    let part = rest.first().and_then(Object::as_slice);
    let offset = part.map_or(Some(0), |part| u64::try_from(part.get(1)?.as_int()?).ok());
    let offset = offset.ok_or("is damaged: its storage has a malformed offset")?;
    Ok(Some(StorageKey { key, element, offset }))
}

/// The element type of a storage of this class; `None` for bytes.
fn element_of_class(class: &Object) -> Result<Option<ElementType>, String> {
    let (_module, name) = class.as_global().ok_or("is damaged: its storage has no class")?;
    if name == "UntypedStorage" {
        return Ok(None);
    }
    let supported = "weights are floats of 16 to 64 bits, or integers";
    let kind = match name {
        "QInt8Storage" | "QUInt8Storage" | "QInt32Storage" | "QUInt4x2Storage" | "QUInt2x4Storage" => "is quantized",
        "ComplexFloatStorage" | "ComplexDoubleStorage" => "is complex",
        _ => "has elements of an unknown type",
    };
    ElementType::of_storage(name).map(Some).ok_or_else(|| format!("{kind} ({name}); {supported}"))
}

fn element_of_dtype(dtype: &Object) -> Result<ElementType, String> {
    let name = dtype.as_global().filter(|(module, _)| *module == "torch").map(|(_, name)| name);
    let name = name.ok_or("is damaged: its element type is missing")?;
    ElementType::of_torch(name).ok_or_else(|| format!("holds {name}; weights are floats of 16 to 64 bits, or integers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(module: &str, name: &str) -> Object {
        Object::global(module, name)
    }

    fn numbers(numbers: &[i64]) -> Object {
        numbers.iter().map(|&number| Object::Int(number)).collect()
    }

    fn storage(class: &str) -> Object {
        let module = if class == "UntypedStorage" { "torch.storage" } else { "torch" };
        let key = ["storage".into(), global(module, class), "7".into(), "cuda:0".into(), Object::Int(12)];
        Object::Persistent(key.into_iter().collect::<Object>().into())
    }

    fn rebuild(version: &str, class: &str, rest: &[Object]) -> Object {
        let arguments = [storage(class), Object::Int(2), numbers(&[2, 3]), numbers(&[3, 1])];
        Object::call(global("torch._utils", version), arguments.into_iter().chain(rest.iter().cloned()))
    }

    const NO_REST: [Object; 2] = [Object::Bool(false), Object::None];

    #[test]
    fn every_way_to_make_a_tensor() {
        let check = |value: Object, element: ElementType| {
            let storage = "7".to_owned();
            let shape = vec![2, 3];
            let stride = vec![3, 1];
            let expected = TensorView { storage, element, offset: 2, shape, stride };
            assert!(is_tensor(&value));
            assert_eq!(tensor(&value), Ok(Some(expected)));
        };
        check(rebuild("_rebuild_tensor", "FloatStorage", &[]), ElementType::F32);
        let plain = rebuild("_rebuild_tensor_v2", "HalfStorage", &NO_REST);
        check(plain.clone(), ElementType::F16);
        let dtype = [&NO_REST[..], &[global("torch", "uint16")]].concat();
        check(rebuild("_rebuild_tensor_v3", "UntypedStorage", &dtype), ElementType::U16);
        let none = || Object::None;
        let utils = |name: &str| global("torch._utils", name);
        check(Object::call(utils("_rebuild_parameter"), [plain.clone(), none(), none()]), ElementType::F16);
        let stateful = [plain.clone(), none(), none(), none()];
        check(Object::call(utils("_rebuild_parameter_with_state"), stateful), ElementType::F16);
        check(Object::call(global("torch.nn.parameter", "Parameter"), [plain.clone()]), ElementType::F16);
        check(Object::call(global("torch.autograd.variable", "Variable"), [plain.clone()]), ElementType::F16);
        let call = plain.as_call().unwrap();
        let typed = [call.function.clone(), global("my", "Tensor"), call.arguments.clone(), none()];
        check(Object::call(global("torch._tensor", "_rebuild_from_type_v2"), typed), ElementType::F16);
    }

    #[test]
    fn tensors_that_are_refused() {
        let check = |value: Object, expected: &str| {
            assert_eq!(tensor(&value), Err(expected.to_owned()));
        };
        let plain = "which is not supported; save it as a plain tensor";
        let made = |name: &str| Object::call(global("torch._utils", name), []);
        check(made("_rebuild_qtensor"), &format!("is quantized, {plain}"));
        check(made("_rebuild_sparse_tensor"), &format!("is sparse, {plain}"));
        check(made("_rebuild_sparse_csr_tensor"), &format!("is sparse, {plain}"));
        check(made("_rebuild_nested_tensor"), &format!("is nested, {plain}"));
        check(made("_rebuild_meta_tensor_no_storage"), &format!("is without values (meta), {plain}"));
        check(made("_rebuild_tensor_v2"), &format!("is made by _rebuild_tensor_v2, {plain}"));
        let supported = "weights are floats of 16 to 64 bits, or integers";
        let of = |class: &str| rebuild("_rebuild_tensor_v2", class, &NO_REST);
        check(of("ComplexFloatStorage"), &format!("is complex (ComplexFloatStorage); {supported}"));
        check(of("QInt8Storage"), &format!("is quantized (QInt8Storage); {supported}"));
        check(of("system"), &format!("has elements of an unknown type (system); {supported}"));
        let typed = |dtype: Object| rebuild("_rebuild_tensor_v3", "UntypedStorage", &[&NO_REST[..], &[dtype]].concat());
        check(typed(global("torch", "float8_e4m3fn")), &format!("holds float8_e4m3fn; {supported}"));
        check(typed(Object::None), "is damaged: its element type is missing");
        check(of("UntypedStorage"), "is damaged: its element type is missing");
        let bits = Object::Dict([(Object::from("neg"), Object::Bool(true))].into());
        let special = rebuild("_rebuild_tensor_v2", "FloatStorage", &[&NO_REST[..], &[bits]].concat());
        check(special, "has special bits (conj or neg), which are not supported; save it after .resolve_neg()");
        let shaped = |offset: i64, shape: &[i64], stride: &[i64]| {
            let arguments = [storage("FloatStorage"), Object::Int(offset), numbers(shape), numbers(stride)];
            Object::call(global("torch._utils", "_rebuild_tensor"), arguments)
        };
        let nonsense = "is damaged: its shape, stride or offset is invalid";
        check(shaped(-1, &[1], &[1]), nonsense);
        check(shaped(0, &[-1], &[1]), nonsense);
        check(shaped(0, &[1], &[-1]), nonsense);
        check(shaped(0, &[1, 1], &[1]), nonsense);
        check(shaped(0, &[1; 65], &[1; 65]), nonsense);
    }

    /// A dictionary of one tensor.
    fn named(name: &str) -> Object {
        dict(&[(name, rebuild("_rebuild_tensor", "FloatStorage", &[]))])
    }

    fn dict(entries: &[(&str, Object)]) -> Object {
        Object::Dict(entries.iter().map(|(key, value)| (Object::from(*key), value.clone())).collect())
    }

    #[test]
    fn dictionaries_around_the_state() {
        let weights = || named("w");
        let check = |object: Object| assert_eq!(state_dict(&object).unwrap(), (weights().as_dict().unwrap(), None));
        check(weights());
        check(dict(&[("epoch", Object::Int(1)), ("state_dict", weights())]));
        check(dict(&[("model", dict(&[("state_dict", weights())])), ("state_dict_2", Object::None)]));
        check(dict(&[("model", "resnet18".into()), ("model_state_dict", weights())]));
        check(dict(&[("net", weights()), ("acc", Object::Float(0.9)), ("epoch", Object::Int(3))]));
        let deep = (0..4).fold(weights(), |inner, _| dict(&[("model", inner)]));
        assert_eq!(state_dict(&deep).unwrap_err(), "holds nested dictionaries, but no weights");
        // It is ambiguous which of the two is meant.
        let two = state_dict(&dict(&[("generator", weights()), ("critic", weights())])).unwrap_err();
        assert!(two.ends_with("the first keys are [\"generator\", \"critic\"]"), "{two}");
        let single = rebuild("_rebuild_tensor", "FloatStorage", &[]);
        assert!(state_dict(&single).unwrap_err().starts_with("holds a single tensor without a name"));
    }

    /// Regression test: the weights beside them were taken.
    #[test]
    fn averages_come_first_as_in_timm() {
        let check = |entries: &[(&str, Object)], name: &str, key: Option<&str>| {
            assert_eq!(state_dict(&dict(entries)).unwrap(), (named(name).as_dict().unwrap(), key));
        };
        let entry = |key| (key, named(key));
        let (of_timm, older) = (entry("state_dict_ema"), entry("model_ema"));
        check(&[entry("state_dict"), of_timm.clone()], "state_dict_ema", Some("state_dict_ema"));
        check(&[entry("model"), older.clone()], "model_ema", Some("model_ema"));
        check(&[older.clone(), of_timm.clone(), entry("state_dict")], "state_dict_ema", Some("state_dict_ema"));
        check(&[("state_dict_ema", Object::None), entry("state_dict")], "state_dict", None);
        check(&[("model_ema", dict(&[])), entry("model")], "model", None);
    }
}
