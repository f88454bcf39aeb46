// Words that this project replaces: words.json beside this file. A test reads the same list.
"use strict";
const words = require("./words.json").map(({ wrong, use }) => ({ wrong: new RegExp(`\\b(?:${wrong})\\b`, "gi"), use }));

module.exports = ({ Syntax, RuleError, report, getSource }) => ({
  [Syntax.Str](node) {
    for (const { wrong, use } of words) {
      for (const found of getSource(node).matchAll(wrong)) {
        report(node, new RuleError(`"${found[0]}": use ${use}`, { index: found.index }));
      }
    }
  },
});
