//! The labels or numbers of a part of a packed file: to bytes and back, without IO.

use crate::TaskKind;
use crate::targets::Targets;

/// Bytes of a number of labels, of a label, and of a number to predict.
const VALUE: usize = 4;

/// Of labels how many each sample has, and then those of all samples; of numbers those of all samples.
pub(super) fn to_bytes(targets: &Targets) -> Vec<u8> {
    let samples = 0..targets.len();
    match targets {
        Targets::Labels { .. } => {
            let counts = samples.clone().map(|index| targets.labels_of(index).len() as u32);
            let labels = samples.flat_map(|index| targets.labels_of(index)).copied();
            counts.chain(labels).flat_map(u32::to_le_bytes).collect()
        }
        Targets::Numbers { numbers, .. } => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
    }
}

/// The targets of so many samples, of a task with `count` outputs. The error is the end of a sentence about the file.
pub(super) fn parse(task: TaskKind, count: usize, samples: usize, bytes: &[u8]) -> Result<Option<Targets>, String> {
    let Some(mut targets) = Targets::of_task(task, count) else { return Ok(None) };
    let (values, rest) = bytes.as_chunks::<VALUE>();
    let other_length =
        || format!("its list of {} has {} bytes, which is not that of {samples} images", task.known(), bytes.len());
    if !rest.is_empty() {
        return Err(other_length());
    }
    match task {
        TaskKind::Regression => {
            if Some(values.len()) != samples.checked_mul(count) {
                return Err(other_length());
            }
            let numbers: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
            if let Some(number) = numbers.iter().find(|number| !number.is_finite()) {
                return Err(format!("it has the number {number} to predict"));
            }
            targets.push_numbers(&numbers);
        }
        TaskKind::MultiLabel | TaskKind::Classification => {
            let (counts, mut labels) = values.split_at_checked(samples).ok_or_else(other_length)?;
            for own in counts {
                let own = u32::from_le_bytes(*own) as usize;
                let (first, others) = labels.split_at_checked(own).ok_or_else(other_length)?;
                let first: Vec<u32> = first.iter().map(|label| u32::from_le_bytes(*label)).collect();
                if !first.is_sorted_by(|one, next| one < next)
                    || first.last().is_some_and(|&last| last as usize >= count)
                {
                    return Err(format!("the labels {first:?} of an image are not in order, or not below {count}"));
                }
                targets.push_labels(first);
                labels = others;
            }
            if !labels.is_empty() {
                return Err(other_length());
            }
        }
    }
    Ok(Some(targets.shrink()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_they_were_written() {
        let mut labels = Targets::labels(3);
        [vec![0, 2], vec![], vec![1]].into_iter().for_each(|own| labels.push_labels(own));
        let bytes = to_bytes(&labels);
        assert_eq!(bytes.as_chunks::<4>().0.iter().map(|value| value[0]).collect::<Vec<_>>(), [2, 0, 1, 0, 2, 1]);
        assert_eq!(parse(TaskKind::MultiLabel, 3, 3, &bytes), Ok(Some(labels)));
        let mut numbers = Targets::numbers(2);
        numbers.push_numbers(&[0.5, -1.0, 3.25, f32::MIN_POSITIVE]);
        assert_eq!(parse(TaskKind::Regression, 2, 2, &to_bytes(&numbers)), Ok(Some(numbers)));
        assert_eq!(parse(TaskKind::Classification, 2, 2, &[]), Ok(None));
    }

    #[test]
    fn other_bytes_are_refused() {
        let check = |task: TaskKind, count: usize, samples: usize, values: &[u32], expected: &str| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!(parse(task, count, samples, &bytes).unwrap_err(), expected);
        };
        use TaskKind::{MultiLabel, Regression};
        let length =
            |what: &str, bytes: usize| format!("its list of {what} has {bytes} bytes, which is not that of 2 images");
        check(MultiLabel, 3, 2, &[1], &length("labels", 4));
        check(MultiLabel, 3, 2, &[1, 1, 0], &length("labels", 12));
        check(MultiLabel, 3, 2, &[1, 1, 0, 1, 2], &length("labels", 20));
        check(MultiLabel, 3, 2, &[u32::MAX, 1, 0], &length("labels", 12));
        check(MultiLabel, 3, 2, &[1, 1, 0, 3], "the labels [3] of an image are not in order, or not below 3");
        check(MultiLabel, 3, 2, &[2, 0, 1, 1], "the labels [1, 1] of an image are not in order, or not below 3");
        check(Regression, 2, 2, &[0; 3], &length("numbers", 12));
        check(Regression, 1, 2, &[0, f32::NAN.to_bits()], "it has the number NaN to predict");
        assert!(
            parse(MultiLabel, 3, usize::MAX, &[0; 4]).is_err() && parse(Regression, 3, usize::MAX, &[0; 4]).is_err()
        );
        assert!(parse(Regression, 1, 1, &[0; 5]).is_err());
    }
}
