//! A model of a namespace: what each block may hold, and what a read may bring.
//!
//! Commands that are under way at the same time are done in any order, each block
//! for itself; those that did not end when their connection did may have been
//! done or not, until a read tells.

/// What a block holds: 0 is zeroes, else the number of a write.
pub type Content = u32;

/// A command that reads or writes blocks, while it is under way.
#[derive(Clone, Debug)]
pub struct Access {
    begun: u64,
    /// Its write, if it is one.
    write: Option<u64>,
}

/// The model.
#[derive(Debug)]
pub struct Disk {
    blocks: Vec<Vec<Candidate>>,
    block: usize,
    clock: u64,
}

/// A write that a block may show.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    content: Content,
    /// Its name, which is when it began.
    write: u64,
    /// When it ended; [`NEVER`] while it may still happen.
    done: u64,
    /// Who begins to read after that does not see it.
    gone: u64,
}

const NEVER: u64 = u64::MAX;

impl Disk {
    /// Of so many blocks, of so many bytes, all zeroes.
    #[must_use]
    pub fn new(blocks: usize, block: usize) -> Self {
        let zeroes = Candidate {
            content: 0,
            write: 0,
            done: 0,
            gone: NEVER,
        };
        Self {
            blocks: vec![vec![zeroes]; blocks],
            block,
            clock: 0,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block(&self) -> usize {
        self.block
    }

    /// How many blocks there are.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A command that reads begins.
    pub fn read(&mut self) -> Access {
        Access {
            begun: self.tick(),
            write: None,
        }
    }

    /// A command begins that stores `content` in `blocks`.
    pub fn write(&mut self, blocks: impl IntoIterator<Item = usize>, content: Content) -> Access {
        let begun = self.tick();
        for block in blocks {
            self.blocks[block].push(Candidate {
                content,
                write: begun,
                done: NEVER,
                gone: NEVER,
            });
        }
        Access {
            begun,
            write: Some(begun),
        }
    }

    /// It ended with success: what was done before it began is overwritten.
    pub fn done(&mut self, access: &Access) {
        let now = self.tick();
        for candidates in &mut self.blocks {
            if candidates.iter().any(|it| Some(it.write) == access.write) {
                for it in candidates.iter_mut() {
                    if Some(it.write) == access.write {
                        it.done = now;
                    } else if it.done < access.begun {
                        it.gone = it.gone.min(now);
                    }
                }
            }
        }
    }

    /// It was not done, and never will be.
    pub fn not_done(&mut self, access: &Access) {
        for candidates in &mut self.blocks {
            candidates.retain(|it| Some(it.write) != access.write);
        }
    }

    /// It was done, or it was not, or in part; now it is over.
    pub fn perhaps_done(&mut self, access: &Access) {
        let now = self.tick();
        for it in self.blocks.iter_mut().flatten() {
            if Some(it.write) == access.write {
                it.done = now;
            }
        }
    }

    /// Whether a command that read could see `content` in `block`.
    #[must_use]
    pub fn allows(&self, access: &Access, block: usize, content: Content) -> bool {
        self.visible(access, block).any(|it| it == content)
    }

    /// What a command that read could see in `block`.
    pub fn visible(&self, access: &Access, block: usize) -> impl Iterator<Item = Content> {
        let candidates = self.blocks[block].iter();
        let seen = candidates.filter(|it| it.gone > access.begun);
        seen.map(|it| it.content)
    }

    /// A command that read saw `content` in `block`: what had ended before it
    /// began, and was not that, was overwritten.
    ///
    /// # Errors
    /// It could not be there.
    pub fn saw(&mut self, access: &Access, block: usize, content: Content) -> Result<(), String> {
        if !self.allows(access, block, content) {
            let candidates = &self.blocks[block];
            return Err(format!(
                "block {block} is {content}, of a read begun at {}: {candidates:?}",
                access.begun
            ));
        }
        let now = self.tick();
        for it in &mut self.blocks[block] {
            if it.content != content && it.done < access.begun {
                it.gone = it.gone.min(now);
            }
        }
        Ok(())
    }

    /// The bytes of `content` in `block`: each 8 say where they belong.
    pub fn fill(&self, block: usize, content: Content, bytes: &mut Vec<u8>) {
        if content == 0 {
            bytes.resize(bytes.len() + self.block, 0);
            return;
        }
        for index in 0..self.block / 8 {
            bytes.extend(word(block, content, index));
        }
    }

    /// What `bytes` of `block` are: one content, or several, each of which has
    /// some of the words.
    ///
    /// # Errors
    /// Something that was never stored there.
    pub fn contents(&self, block: usize, bytes: &[u8]) -> Result<Vec<Content>, String> {
        if bytes.len() != self.block {
            return Err(format!("{} bytes of block {block}", bytes.len()));
        }
        let mut contents = Vec::new();
        for (index, stored) in bytes.chunks(8).enumerate() {
            let content = stored.iter().take(4).rev();
            let content = content.fold(0, |all, byte| all << 8 | u32::from(*byte));
            if content == 0 && stored != [0; 8]
                || content > 0 && stored != word(block, content, index)
            {
                let at = index * 8;
                return Err(format!("block {block} at byte {at}: {stored:02x?}"));
            }
            if !contents.contains(&content) {
                contents.push(content);
            }
        }
        Ok(contents)
    }
}

fn word(block: usize, content: Content, index: usize) -> [u8; 8] {
    let [c0, c1, c2, c3] = content.to_le_bytes();
    let [b0, b1, ..] = block.to_le_bytes();
    let [i0, i1, ..] = index.to_le_bytes();
    [c0, c1, c2, c3, b0, b1, i0, i1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(disk: &Disk, access: &Access) -> Vec<Content> {
        disk.visible(access, 0).collect()
    }

    #[test]
    fn one_after_the_other() {
        let mut disk = Disk::new(1, 512);
        let first = disk.write([0], 1);
        disk.done(&first);
        let second = disk.write([0], 2);
        let during = disk.read();
        assert_eq!(seen(&disk, &during), [1, 2]);
        disk.done(&second);
        let after = disk.read();
        assert_eq!(seen(&disk, &after), [2]);
        assert_eq!(seen(&disk, &during), [1, 2]);
        assert!(disk.saw(&after, 0, 1).is_err());
        assert!(disk.saw(&during, 0, 0).is_err());
    }

    #[test]
    fn at_the_same_time_in_any_order() {
        let mut disk = Disk::new(1, 512);
        let first = disk.write([0], 1);
        let second = disk.write([0], 2);
        disk.done(&second);
        disk.done(&first);
        let read = disk.read();
        assert_eq!(seen(&disk, &read), [1, 2]);
        disk.saw(&read, 0, 2).unwrap();
        let again = disk.read();
        assert_eq!(seen(&disk, &again), [2], "it has been observed");
    }

    #[test]
    fn in_doubt_until_it_is_over() {
        let mut disk = Disk::new(1, 512);
        let lost = disk.write([0], 1);
        let read = disk.read();
        disk.saw(&read, 0, 0).unwrap();
        let next = disk.write([0], 2);
        disk.done(&next);
        // The old write may still be done, and overwrite the new one.
        let read = disk.read();
        assert_eq!(seen(&disk, &read), [1, 2]);
        disk.perhaps_done(&lost);
        let read = disk.read();
        disk.saw(&read, 0, 2).unwrap();
        let read = disk.read();
        assert_eq!(seen(&disk, &read), [2]);
        let refused = disk.write([0], 3);
        disk.not_done(&refused);
        let read = disk.read();
        assert_eq!(seen(&disk, &read), [2]);
    }

    #[test]
    fn bytes_say_where_they_belong() {
        let disk = Disk::new(4, 512);
        let mut bytes = Vec::new();
        disk.fill(3, 9, &mut bytes);
        assert_eq!(disk.contents(3, &bytes), Ok(vec![9]));
        assert!(disk.contents(2, &bytes).is_err());
        bytes[100] ^= 1;
        assert!(disk.contents(3, &bytes).is_err());
        bytes[96..].fill(0);
        assert_eq!(disk.contents(3, &bytes), Ok(vec![9, 0]));
    }
}
