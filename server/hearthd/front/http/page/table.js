// A table that is updated in place: rows are identified by a key, and only changed cells are written.

import { el, setChildren, setText, setTitle } from "./dom.js";

const MOST = 200; // number of rows that are shown; others are found by the filter

/**
 * columns: [{ label, text(row), value(row)?, title(row)?, right?, build(row)? }]; a column with `value` can be sorted,
 * one with `build` is created once for each row. key(row): identifies a row. none: the text of an empty table.
 */
export class Table {
  constructor(place, columns, key, none, sortBy = null) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.shown = [];
    this.sortBy = sortBy; // { column, down }
    this.none = el("p", { class: "none" }, ...none);
    this.more = el("p", { class: "quiet" });
    this.body = el("tbody", { role: "rowgroup" });
    this.heads = columns.map((column, index) => this.head(column, index));
    const head = el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...this.heads));
    this.table = el("table", { role: "table", "aria-labelledby": place.parentElement.getAttribute("aria-labelledby") },
      head, this.body);
    place.replaceChildren(this.none, this.table, this.more);
    this.mark();
  }

  head(column, index) {
    const props = { role: "columnheader", scope: "col", class: column.right ? "right" : "" };
    if (!column.value) return el("th", props, column.label);
    return el("th", props, el("button", { type: "button", onclick: () => this.sort(index) }, column.label));
  }

  sort(index) {
    const same = this.sortBy?.column === index;
    this.sortBy = { column: index, down: same ? !this.sortBy.down : Boolean(this.columns[index].right) };
    this.mark();
    this.show(this.shown);
  }

  mark() {
    this.heads.forEach((head, index) => {
      if (this.sortBy?.column !== index) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", this.sortBy.down ? "descending" : "ascending");
    });
  }

  show(rows) {
    this.shown = rows;
    const some = this.ordered(rows).slice(0, MOST);
    const left = new Set(this.rows.keys());
    const nodes = some.map((row) => {
      const key = this.key(row);
      left.delete(key);
      let known = this.rows.get(key);
      if (!known) this.rows.set(key, (known = this.row(row)));
      this.fill(known, row);
      return known.node;
    });
    left.forEach((key) => this.rows.delete(key));
    setChildren(this.body, nodes);
    this.table.hidden = !rows.length;
    this.none.hidden = Boolean(rows.length);
    setText(this.more, rows.length > MOST ? `${rows.length - MOST} more are not shown.` : "");
  }

  ordered(rows) {
    if (!this.sortBy) return rows;
    const { value } = this.columns[this.sortBy.column];
    const sign = this.sortBy.down ? -1 : 1;
    return [...rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  }

  row(row) {
    const cells = this.columns.map((column) => {
      const kind = [column.right ? "right" : "", column.build ? "actions" : ""].join(" ").trim();
      const cell = el("td", { role: "cell", class: kind, "data-label": column.label });
      const inner = column.build ? column.build(row) : [el("span")];
      cell.append(...inner);
      return cell;
    });
    return { node: el("tr", { role: "row" }, ...cells), cells };
  }

  fill(known, row) {
    this.columns.forEach((column, index) => {
      if (column.build) return;
      const span = known.cells[index].firstElementChild;
      setText(span, column.text(row));
      if (column.title) setTitle(span, column.title(row));
    });
  }
}
