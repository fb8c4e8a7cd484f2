//! An engine of cuDNN with its settings, as a text from which it can be made again.

use std::fmt;
use std::str::FromStr;

use enmasse_tensor::DType;

/// An engine by its number among those of an operation graph, and its knobs. The numbers belong to a version of cuDNN. As text:
/// `eng49_k2=5_k13=1`, and `eng49_k2=5_bf16` where the type of a gradient of weights was a choice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    /// Its number.
    pub(super) index: i64,
    /// Number and value of each knob.
    pub(super) knobs: Vec<(i32, i64)>,
    /// The type in which it writes the gradient of weights, if there was a choice.
    pub(super) weights: Option<DType>,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "eng{}", self.index)?;
        for (knob, value) in &self.knobs {
            write!(f, "_k{knob}={value}")?;
        }
        self.weights.map_or(Ok(()), |weights| write!(f, "_{}", weights.name()))
    }
}

impl FromStr for Engine {
    type Err = ();

    /// Reads the text of [`Engine`]'s `Display`, and no other.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split('_');
        let index = number(words.next().and_then(|word| word.strip_prefix("eng")))?;
        let mut engine = Engine { index, knobs: Vec::new(), weights: None };
        for word in words {
            if engine.weights.is_some() {
                return Err(());
            }
            match word.strip_prefix('k').and_then(|knob| knob.split_once('=')) {
                Some((knob, value)) => engine.knobs.push((number(Some(knob))?, number(Some(value))?)),
                None => {
                    let types = [DType::F32, DType::F16, DType::Bf16];
                    engine.weights = Some(types.into_iter().find(|known| known.name() == word).ok_or(())?);
                }
            }
        }
        Ok(engine)
    }
}

/// A number as it is printed, without a plus or leading zeros, so that each engine has one text.
fn number<T: FromStr + ToString>(text: Option<&str>) -> Result<T, ()> {
    let text = text.ok_or(())?;
    let number: T = text.parse().map_err(drop)?;
    if number.to_string() == text { Ok(number) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_an_engine() {
        let check = |text: &str, index: i64, knobs: &[(i32, i64)], weights: Option<DType>| {
            let engine = Engine { index, knobs: knobs.to_vec(), weights };
            assert_eq!(text.parse(), Ok(engine.clone()));
            assert_eq!(engine.to_string(), text);
        };
        check("eng0", 0, &[], None);
        check("eng49_k2=5_k13=1", 49, &[(2, 5), (13, 1)], None);
        check("eng41_k12=-1", 41, &[(12, -1)], None);
        check("eng49_f32", 49, &[], Some(DType::F32));
        check("eng49_k2=5_bf16", 49, &[(2, 5)], Some(DType::Bf16));
        for text in [
            "",
            "eng",
            "engine",
            "49",
            "eng+1",
            "eng01",
            "eng1_",
            "eng1_k",
            "eng1_k2",
            "eng1_k2=",
            "eng1_f64",
            "eng1_f32_k2=5",
        ] {
            assert_eq!(text.parse::<Engine>(), Err(()), "{text}");
        }
    }
}
