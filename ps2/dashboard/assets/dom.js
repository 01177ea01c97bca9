// Elements, and tables that change in place: focus, selection and scroll position stay when numbers change.

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function shape(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function text(node, words) {
  const content = String(words);
  if (node.textContent !== content) node.textContent = content;
}

export function className(node, name) {
  if (node.className !== name) node.className = name;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

// Fills a node with facts, a list of [words, value]; the value is bold.
export function facts(node, pairs) {
  while (node.children.length > pairs.length) node.lastChild.remove();
  pairs.forEach(([words, value], i) => {
    if (!node.children[i]) node.append(element("span", {}, element("b"), document.createTextNode("")));
    const [bold, label] = node.children[i].childNodes;
    text(bold, value);
    const content = ` ${words}`;
    if (label.data !== content) label.data = content;
  });
}

// Fills a cell with a link to another site.
function linked(cell, words, address, about) {
  if (!cell.firstElementChild) cell.replaceChildren(element("a", { target: "_blank", rel: "noreferrer", title: about }));
  const link = cell.firstElementChild;
  if (link.getAttribute("href") !== address) link.setAttribute("href", address);
  text(link, words);
}

// A table in a scrolling box. Columns are {name, of(row), number, wide, kind(row), link(row), about}: ``of`` returns the text of a
// cell, ``kind`` its class, ``link`` an address. ``mark(row)`` returns the class of a row.
export class Table {
  constructor(label, columns, mark = () => "") {
    this.columns = columns;
    this.mark = mark;
    this.body = element("tbody");
    const head = columns.map((column) => element("th", { scope: "col", class: column.number ? "n" : "" }, column.name));
    const table = element("table", { "aria-label": label }, element("thead", {}, element("tr", {}, ...head)), this.body);
    this.node = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
  }

  fill(rows) {
    const { body, columns } = this;
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((row, i) => {
      let line = body.rows[i];
      if (!line) {
        line = element("tr", {}, ...columns.map((c) => element("td", { class: c.number ? "n" : c.wide ? "wide" : "" })));
        body.append(line);
      }
      className(line, this.mark(row) || "");
      columns.forEach((column, j) => {
        const address = column.link && column.link(row);
        if (address) linked(line.cells[j], column.of(row), address, column.about);
        else text(line.cells[j], column.of(row));
        if (column.kind) className(line.cells[j], column.kind(row));
      });
    });
  }
}
