#!/usr/bin/env python3
"""Prints the code of a README as one program, so that clients/test.sh can run it against a service.

    python3 clients/readme.py python clients/python/README.md http://127.0.0.1:8082
"""

import re
import sys

# What makes a program of statements; `using` directives come first.
CSHARP = """%s
using System.Threading.Tasks;

static class Readme
{
    static async Task Run()
    {
%s
    }

    static void Main()
    {
        Run().GetAwaiter().GetResult();
    }
}
"""

language, path, url = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
text = "\n".join(blocks).replace("http://127.0.0.1:8082", url)
if language == "csharp":
    directive = re.compile(r"^using [\w.]+;\n", re.MULTILINE)
    text = CSHARP % ("".join(directive.findall(text)), directive.sub("", text))
print(text)
