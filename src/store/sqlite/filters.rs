//! The conditions of lists of intents, with their values.

use rusqlite::Connection;
use rusqlite::types::Value;

use super::read::{find, first_seq_from, next_moment};
use crate::domain::intent::Status;
use crate::store::{ListOrder, ListQuery, PageCursor};

/// The condition that an intent is of a target; its value is the name.
pub(super) const OF_TARGET: &str =
    "i.contract_id IN (SELECT contract_id FROM submission_contracts WHERE submission_target = ?)";

/// A range of the numbers of intents. It has at most one condition in each direction: with two, SQLite may use the worse one in
/// its index and read all intents between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NumberRange {
    first: i64,
    end: Option<i64>,
}

impl NumberRange {
    /// Returns the range of intents that were created in the period of a query.
    pub(super) fn of(snapshot: &Connection, query: &ListQuery) -> Result<Self, rusqlite::Error> {
        // Intents of jobs have numbers below zero.
        let mut range = Self { first: 0, end: None };
        if let Some(moment) = query.created_after {
            range.begin_at(first_seq_from(snapshot, next_moment(moment))?);
        }
        if let Some(moment) = query.created_before {
            range.end_before(first_seq_from(snapshot, moment)?);
        }
        Ok(range)
    }

    fn begin_at(&mut self, first: i64) {
        self.first = self.first.max(first);
    }

    fn end_before(&mut self, end: i64) {
        self.end = Some(self.end.map_or(end, |earlier| earlier.min(end)));
    }

    pub(super) fn sql(&self) -> &'static str {
        match self.end {
            None => "i.intent_seq >= ?",
            Some(_) => "i.intent_seq >= ? AND i.intent_seq < ?",
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = Value> + use<> {
        [Some(self.first), self.end].into_iter().flatten().map(Value::Integer)
    }
}

/// The conditions of a query, and their values in the same order.
#[derive(Clone)]
pub(super) struct Filters {
    numbers: NumberRange,
    conditions: Vec<&'static str>,
    values: Vec<Value>,
}

impl Filters {
    /// Makes the filters of a query, without those for ids.
    pub(super) fn of(snapshot: &Connection, query: &ListQuery) -> Result<Self, rusqlite::Error> {
        let numbers = NumberRange::of(snapshot, query)?;
        let mut filters = Self { numbers, conditions: Vec::new(), values: Vec::new() };
        if let Some(target) = &query.target {
            filters.add(OF_TARGET, Value::Text(target.to_string()));
        }
        if let Some(redrive) = query.redrive {
            filters.add(
                "EXISTS (SELECT 1 FROM submission_intent_options o
                     WHERE o.intent_seq = i.intent_seq AND o.redrive_id = ?)",
                Value::Text(redrive.to_string()),
            );
        }
        // The status is a constant and not a parameter, because SQLite uses a partial index only for a constant.
        filters.conditions.extend(query.status.map(|status| match status {
            Status::Pending => "i.status = 'pending'",
            Status::Accepted => "i.status = 'accepted'",
            Status::Rejected => "i.status = 'rejected'",
            Status::Exhausted => "i.status = 'exhausted'",
        }));
        Ok(filters)
    }

    pub(super) fn add(&mut self, condition: &'static str, value: Value) {
        self.conditions.push(condition);
        self.values.push(value);
    }

    /// Continues after the last intent of the page before. If it was deleted meanwhile, intents of its creation time may be
    /// listed twice, but none is left out.
    pub(super) fn continue_page(&mut self, snapshot: &Connection, query: &ListQuery) -> Result<(), rusqlite::Error> {
        let Some(PageCursor::Newer { created_at, id }) = &query.after else { return Ok(()) };
        let last = find(snapshot, id)?.map(|found| found.intent.seq.0);
        match (query.order, last) {
            (ListOrder::NewestFirst, Some(last)) => self.numbers.end_before(last),
            (ListOrder::NewestFirst, None) => {
                self.numbers.end_before(first_seq_from(snapshot, next_moment(*created_at))?);
            }
            (ListOrder::OldestFirst, Some(last)) => self.numbers.begin_at(last + 1),
            (ListOrder::OldestFirst, None) => self.numbers.begin_at(first_seq_from(snapshot, *created_at)?),
        }
        Ok(())
    }

    /// Returns the SQL of all conditions.
    pub(super) fn sql(&self) -> String {
        [self.numbers.sql()].iter().chain(&self.conditions).copied().collect::<Vec<_>>().join(" AND ")
    }

    /// Returns the values of all conditions.
    pub(super) fn values(&self) -> Vec<Value> {
        self.numbers.values().chain(self.values.iter().cloned()).collect()
    }
}

/// The direction of a list in SQL.
pub(super) fn direction(order: ListOrder) -> &'static str {
    match order {
        ListOrder::NewestFirst => "DESC",
        ListOrder::OldestFirst => "ASC",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_one_condition_in_each_direction() {
        let mut range = NumberRange { first: 0, end: None };
        assert_eq!(range.sql(), "i.intent_seq >= ?");
        range.begin_at(5);
        range.begin_at(3);
        range.end_before(9);
        range.end_before(11);
        assert_eq!(range.sql(), "i.intent_seq >= ? AND i.intent_seq < ?");
        assert_eq!(range.values().collect::<Vec<_>>(), [Value::Integer(5), Value::Integer(9)]);
    }
}
