// Tables: of pages, and behind every picture.
import { tools } from "./view.js";

const { html, useState } = tools;

/**
 * `columns`: [{key, label, help?, number?, cell?: row → what is shown, sort?: name for the server}].
 * The heading of a sortable column is a button; `sort` names the column in force, `onSort` gets the new name.
 */
export function Table({ caption, columns, rows, empty = "Nothing yet.", sort, onSort, rowKey }) {
  if (rows.length === 0) return html`<p class="quiet">${empty}</p>`;
  const heading = (column) => {
    if (!onSort || !column.sort) return html`<th scope="col" class=${column.number ? "number" : ""} title=${column.help}>${column.label}</th>`;
    const now = sort === column.sort;
    return html`<th scope="col" class=${column.number ? "number" : ""} aria-sort=${now ? "descending" : "none"} title=${column.help}>
      <button class="plain" onClick=${() => onSort(column.sort)}>${column.label}<span aria-hidden="true">${now ? " ▾" : ""}</span></button>
    </th>`;
  };
  return html`<div class="table" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="only-read">${caption}</caption>
      <thead><tr>${columns.map(heading)}</tr></thead>
      <tbody>${rows.map(
        (row, n) => html`<tr key=${rowKey ? rowKey(row) : n}>
          ${columns.map((column) => html`<td class=${column.number ? "number" : ""}>${column.cell ? column.cell(row) : row[column.key]}</td>`)}
        </tr>`,
      )}</tbody>
    </table>
  </div>`;
}

/** "11–20 of 153" with buttons to the pages before and after. */
export function Pages({ offset, limit, total, onOffset, what = "rows" }) {
  if (!total || total <= limit) return null;
  return html`<nav class="pages" aria-label=${"Pages of " + what}>
    <button disabled=${offset <= 0} onClick=${() => onOffset(Math.max(0, offset - limit))}>◂ before</button>
    <span class="num">${offset + 1}–${Math.min(total, offset + limit)} of ${total}</span>
    <button disabled=${offset + limit >= total} onClick=${() => onOffset(offset + limit)}>after ▸</button>
  </nav>`;
}

/** A picture with its heading, and the same as a table at the press of a button. `table` is only made when shown. */
export function Picture({ title, help, note, table, tools: buttons, children, id }) {
  const [asTable, setAsTable] = useState(false);
  return html`<section class="card" aria-labelledby=${id}>
    <header>
      <h2 id=${id}>${title}</h2>${help}
      <div class="buttons">${buttons}
        <button aria-pressed=${asTable ? "true" : "false"} onClick=${() => setAsTable(!asTable)}>${asTable ? "Picture" : "Table"}<span class="only-read"> of ${title}</span></button>
      </div>
    </header>
    ${note && html`<p class="note">${note}</p>`}
    ${asTable ? table() : children}
  </section>`;
}
