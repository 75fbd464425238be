//! The multi-line form of a structure for people: a name and a value a line,
//! nested structures indented below their name.
use core::fmt::{self, Display, Write};

/// A structure that can list its fields.
pub trait Tree {
    /// Writes each field with [`TreeWriter::field`] or [`TreeWriter::node`].
    ///
    /// # Errors
    /// Whatever the underlying writer reports.
    fn fields(&self, out: &mut TreeWriter<'_>) -> fmt::Result;

    /// Adapts the tree form to `Display`: `println!("{}", id.tree())`.
    fn tree(&self) -> AsTree<'_, Self> {
        AsTree(self)
    }
}

/// Receives the fields of a [`Tree`] and indents them.
pub struct TreeWriter<'w> {
    out: &'w mut dyn Write,
    depth: usize,
}

impl<'w> TreeWriter<'w> {
    /// Starts at the left margin of `out`.
    pub fn new(out: &'w mut dyn Write) -> Self {
        Self { out, depth: 0 }
    }

    /// One line: `name: value`.
    ///
    /// # Errors
    /// Whatever the underlying writer reports.
    pub fn field(&mut self, name: &str, value: impl Display) -> fmt::Result {
        self.indent()?;
        writeln!(self.out, "{name}: {value}")
    }

    /// A nested structure: its name on a line, its fields indented below.
    ///
    /// # Errors
    /// Whatever the underlying writer reports.
    pub fn node(&mut self, name: impl Display, node: &(impl Tree + ?Sized)) -> fmt::Result {
        self.indent()?;
        writeln!(self.out, "{name}:")?;
        node.fields(&mut TreeWriter {
            out: self.out,
            depth: self.depth.saturating_add(1),
        })
    }

    fn indent(&mut self) -> fmt::Result {
        (0..self.depth).try_for_each(|_| self.out.write_str("  "))
    }
}

/// `Display` through [`Tree`].
pub struct AsTree<'a, T: ?Sized>(&'a T);

impl<T: Tree + ?Sized> Display for AsTree<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fields(&mut TreeWriter::new(f))
    }
}
