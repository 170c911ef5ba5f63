(() => {
  const filters = document.querySelector(".filters");
  const buttons = filters.querySelectorAll("button");
  filters.hidden = false;
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      for (const row of document.querySelectorAll(".ledger tbody tr")) {
        row.hidden = button.dataset.show !== "" && row.dataset.verdict !== button.dataset.show;
      }
    });
  }
})();
