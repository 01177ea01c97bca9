// The table of matrices and their vectors. A snapshot has its first page; other pages are requested.

import { Table, element, show, text } from "./dom.js";
import { bytes, dim, number, plural } from "./format.js";

const PAGE = 100;

export class Vectors {
  constructor(body) {
    this.begin = 0;
    this.find = "";
    this.busy = false;
    this.table = new Table("Matrices", [
      { name: "vectors", of: named, wide: true },
      { name: "kind", of: (m) => `${m.kind}, ${m.layout}` },
      { name: "dtype", of: (m) => m.dtype },
      { name: "columns", of: (m) => dim(m.dim), number: true },
      { name: "rows", of: (m) => (m.reserved > m.rows ? `${number(m.rows)} of ${number(m.reserved)}` : number(m.rows)), number: true },
      { name: "keys", of: (m) => number(m.keys), number: true },
      { name: "size", of: (m) => bytes(m.bytes), number: true },
      { name: "partitions by server", of: (m) => partitions(m, this.servers), wide: true },
    ]);
    this.search = element("input", { type: "search", placeholder: "name or id", "aria-label": "Find vectors by name or id", oninput: () => this.look(0) });
    this.back = element("button", { type: "button", onclick: () => this.look(this.begin - PAGE) }, "Previous");
    this.next = element("button", { type: "button", onclick: () => this.look(this.begin + PAGE) }, "Next");
    this.said = element("span", { class: "quiet grow" });
    this.pager = element("div", { class: "pager" }, this.search, this.said, this.back, this.next);
    this.empty = element("p", { class: "empty" }, "No vector yet: DCV.dense(...) makes one.");
    body.append(this.pager, this.empty, this.table.node);
  }

  fill(snapshot) {
    if (this.begin === 0 && this.search.value === "") this.draw(snapshot.vectors);
    else this.look(this.begin);
  }

  // Requests a page. If the page changes during a request, another request follows.
  async look(begin) {
    this.begin = Math.max(0, begin);
    this.find = this.search.value;
    if (this.busy) return;
    this.busy = true;
    const query = `begin=${this.begin}&find=${encodeURIComponent(this.find.slice(0, 200))}`;
    try {
      const answer = await fetch(`/vectors?${query}`);
      if (answer.ok) this.draw(await answer.json());
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // the driver cannot be reached, which the page shows
    } finally {
      this.busy = false;
    }
    if (query !== `begin=${this.begin}&find=${encodeURIComponent(this.search.value.slice(0, 200))}`) this.look(this.begin);
  }

  draw(vectors) {
    this.begin = vectors.begin;
    this.servers = vectors.servers;
    this.table.fill(vectors.shown);
    show(this.empty, vectors.matrices === 0);
    show(this.pager, vectors.matrices > 0);
    show(this.table.node, vectors.matrices > 0);
    const all = `${plural(vectors.rows, "vector")} in ${vectors.matrices === 1 ? "1 matrix" : `${number(vectors.matrices)} matrices`}, ${bytes(vectors.bytes)}`;
    const last = vectors.begin + vectors.shown.length;
    const part = vectors.found > vectors.shown.length || vectors.begin ? ` · ${number(vectors.begin + 1)}–${number(last)} of ${number(vectors.found)}, the largest first` : "";
    text(this.said, vectors.found < vectors.matrices ? `${number(vectors.found)} found · ${all}${part}` : all + part);
    this.back.disabled = vectors.begin === 0;
    this.next.disabled = last >= vectors.found;
    show(this.back, vectors.found > PAGE);
    show(this.next, vectors.found > PAGE);
  }
}

function named(matrix) {
  if (!matrix.named) return `unnamed (${matrix.id})`;
  const more = matrix.named - matrix.names.length;
  return matrix.names.join(", ") + (more > 0 ? ` and ${number(more)} more` : "");
}

function partitions(matrix, servers) {
  const counts = matrix.partitions, few = counts.slice(0, 16);
  if (counts.every((n) => n === counts[0])) return servers === 1 ? `${counts[0]}` : `${counts[0]} on each of ${number(servers)}`;
  return few.map((n, index) => `${index}: ${n}`).join("  ") + (counts.length > few.length ? " …" : "");
}
