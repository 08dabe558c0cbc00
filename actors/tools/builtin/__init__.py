"""The tools that come with motet: files, shell, web, and details of stored errors."""
