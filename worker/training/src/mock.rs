//! A mock model: its weights after a number of steps are known to the byte, and they show which samples were used.
//!
//! *Invariant:* the weights depend only on the seed and on the number of steps; the fold depends only on the samples,
//! not on their order, so the folds of several trainers add up. A sample used twice, or never, shows.

use bytes::Bytes;

/// Weights of the model.
const WEIGHTS: usize = 8;
/// Numbers of the fold.
const FOLDS: usize = 4;
/// How fast the weights change.
const RATE: f32 = 1e-3;

/// The model, and the samples that it was trained on.
#[derive(Clone, Debug, PartialEq)]
pub struct MockModel {
    seed: u64,
    steps: u64,
    weights: [f32; WEIGHTS],
    /// The fold of the samples used: the sum of their digests, and their number.
    fold: [u64; FOLDS],
    samples: u64,
}

/// The result of a forward pass, for the optimizer.
#[derive(Clone, Debug)]
pub struct GradHandle {
    step: u64,
    samples: Vec<u64>,
}

impl MockModel {
    /// The model before the first step.
    pub fn new(seed: u64) -> Self {
        let weights = [seed as f32 / 1000.0; WEIGHTS];
        Self { seed, steps: 0, weights, fold: [0; FOLDS], samples: 0 }
    }

    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The number of samples used, and their fold.
    pub fn folded(&self) -> (u64, [u64; FOLDS]) {
        (self.samples, self.fold)
    }

    /// The loss over these samples, and their gradient.
    pub fn forward_with_loss(&self, samples: &[u64]) -> (f32, GradHandle) {
        (0.5, GradHandle { step: self.steps + 1, samples: samples.to_vec() })
    }

    /// Takes a step: adds `(seed + step) * rate` to every weight, and the samples to the fold.
    pub fn optimizer_step(&mut self, grad: GradHandle) {
        let delta = (self.seed + grad.step) as f32 * RATE;
        self.weights.iter_mut().for_each(|weight| *weight += delta);
        for sample in grad.samples {
            let digest = blake3::hash(&sample.to_le_bytes());
            for (sum, part) in self.fold.iter_mut().zip(digest.as_bytes().chunks_exact(8)) {
                let part = part.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
                *sum = sum.wrapping_add(part);
            }
            self.samples += 1;
        }
        self.steps = grad.step;
    }

    /// Adds another trainer's fold.
    pub fn absorb(&mut self, other: &MockModel) {
        self.fold.iter_mut().zip(other.fold).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        self.samples += other.samples;
    }

    /// The same weights and steps with an empty fold: another rank's fold is not this one's.
    pub fn without_samples(mut self) -> Self {
        (self.fold, self.samples) = ([0; FOLDS], 0);
        self
    }

    /// The complete model as bytes.
    pub fn save_weights(&self) -> Bytes {
        let weights = self.weights.iter().flat_map(|weight| weight.to_le_bytes());
        let numbers = [self.seed, self.steps, self.samples].into_iter().chain(self.fold);
        numbers.flat_map(u64::to_le_bytes).chain(weights).collect()
    }

    /// Restores the output of [`save_weights`](Self::save_weights); none for other bytes.
    pub fn load_weights(bytes: &[u8]) -> Option<Self> {
        let (numbers, weights) = bytes.split_at_checked(8 * (3 + FOLDS))?;
        let mut numbers = numbers.chunks_exact(8).map(|n| n.try_into().map(u64::from_le_bytes));
        let mut number = || numbers.next()?.ok();
        let (seed, steps, samples) = (number()?, number()?, number()?);
        let mut model = Self { steps, samples, ..Self::new(seed) };
        for sum in &mut model.fold {
            *sum = number()?;
        }
        if weights.len() != 4 * WEIGHTS {
            return None;
        }
        for (weight, bytes) in model.weights.iter_mut().zip(weights.chunks_exact(4)) {
            *weight = f32::from_le_bytes(bytes.try_into().ok()?);
        }
        Some(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stepped(mut model: MockModel, steps: std::ops::Range<u64>) -> MockModel {
        for step in steps {
            let (loss, grad) = model.forward_with_loss(&[step * 2, step * 2 + 1]);
            assert_eq!(loss, 0.5);
            model.optimizer_step(grad);
        }
        model
    }

    #[test]
    fn ten_steps_are_five_and_five_more() {
        let ten = stepped(MockModel::new(42), 0..10);
        let five = stepped(MockModel::new(42), 0..5).save_weights();
        let again = stepped(MockModel::load_weights(&five).unwrap(), 5..10);
        assert_eq!(again.save_weights(), ten.save_weights());
        assert_ne!(stepped(MockModel::new(42), 0..9).save_weights(), ten.save_weights());
    }

    #[test]
    fn the_fold_shows_a_sample_used_twice_or_never_whichever_trainer_used_it() {
        let whole = stepped(MockModel::new(1), 0..6);
        let mut apart = stepped(MockModel::new(1), 0..2);
        apart.absorb(&stepped(MockModel::new(1), 2..6));
        assert_eq!(apart.folded(), whole.folded());
        apart.absorb(&stepped(MockModel::new(1), 5..6));
        assert_ne!(apart.folded().1, whole.folded().1);
        assert_eq!(whole.without_samples().folded(), (0, [0; FOLDS]));
    }

    #[test]
    fn other_bytes_are_no_weights() {
        let good = MockModel::new(3).save_weights();
        assert!(MockModel::load_weights(&good[1..]).is_none());
        assert!(MockModel::load_weights(&[]).is_none());
        assert_eq!(MockModel::load_weights(&good), Some(MockModel::new(3)));
    }
}
