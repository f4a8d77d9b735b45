//! Prints plain tables.

/// What a scenario found, to be printed as one table.
pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self { title: title.into(), rows: vec![columns.iter().map(|&column| column.to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn print(&self) {
        println!("\n{}", self.title);
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell: &String| cell.chars().count()).max()
        };
        let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(i, (cell, &width))| match i {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            println!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}

/// Says whether a figure reached its goal; `at_most` or at least.
pub fn goal(name: &str, value: f64, goal: Goal) {
    let (is_met, sign, bound) = match goal {
        Goal::AtMost(bound) => (value <= bound, '≤', bound),
        Goal::AtLeast(bound) => (value >= bound, '≥', bound),
    };
    println!("  {}: {name} {value:.2} (goal {sign} {bound})", if is_met { "met" } else { "MISSED" });
}

/// Where a figure should be.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    AtMost(f64),
    AtLeast(f64),
}
