//! Deterministic mutations of seeds: the same number gives the same mutation.

/// Inputs do not grow beyond this.
const BYTES_MAX: usize = 16 * 1024;
/// Changes of one input.
const CHANGES_MAX: u64 = 8;
/// Numbers that decoders compare lengths with.
const INTERESTING: [u64; 12] =
    [0, 1, 2, 127, 128, 255, 256, 65_535, 65_536, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// Makes inputs.
#[derive(Debug)]
pub struct Mutator {
    state: u64,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    /// A mutator of these seeds, or of the empty input if there are none.
    pub fn new(number: u64, mut seeds: Vec<Vec<u8>>) -> Self {
        seeds.push(Vec::new());
        Self { state: number ^ 0x9e37_79b9_7f4a_7c15, seeds }
    }

    /// Splitmix64.
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound.max(1) as u64) as usize
    }

    pub fn next_input(&mut self) -> Vec<u8> {
        let seed = self.below(self.seeds.len());
        let mut input = self.seeds[seed].clone();
        for _ in 0..=self.draw() % CHANGES_MAX {
            self.change(&mut input);
        }
        input.truncate(BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        match self.draw() % 8 {
            0 if at < input.len() => input[at] ^= 1 << (self.draw() % 8),
            1 if at < input.len() => input[at] = self.draw() as u8,
            2 if at < input.len() => input[at] = INTERESTING[self.below(6)] as u8,
            3 => self.overwrite(input, at),
            4 => {
                let inserted: Vec<u8> = (0..=self.below(8)).map(|_| self.draw() as u8).collect();
                input.splice(at..at, inserted);
            }
            5 => drop(input.drain(at..(at + 1 + self.below(16)).min(input.len()).max(at))),
            6 => input.truncate(at),
            _ => self.splice(input, at),
        }
    }

    /// A number of one to eight bytes that decoders compare lengths with.
    fn overwrite(&mut self, input: &mut [u8], at: usize) {
        let number = INTERESTING[self.below(INTERESTING.len())];
        let number = number.wrapping_add(self.draw() % 3).wrapping_sub(1);
        let bytes = match self.draw() % 2 {
            0 => number.to_le_bytes(),
            _ => number.to_be_bytes(),
        };
        let width = (1 << (self.draw() % 4)).min(input.len() - at);
        let from = if self.draw().is_multiple_of(2) { 0 } else { 8 - width };
        input[at..at + width].copy_from_slice(&bytes[from..from + width]);
    }

    /// Inserts a piece of a seed, or overwrites what follows with it.
    fn splice(&mut self, input: &mut Vec<u8>, at: usize) {
        let seed = self.below(self.seeds.len());
        let from = self.below(self.seeds[seed].len() + 1);
        let to = from + self.below(self.seeds[seed].len() - from + 1);
        let piece = self.seeds[seed][from..to].to_vec();
        let end =
            if self.draw().is_multiple_of(2) { at } else { (at + piece.len()).min(input.len()) };
        input.splice(at..end, piece);
    }
}
