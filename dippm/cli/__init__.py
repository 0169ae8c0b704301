"""The command `dippm`: parses arguments, calls the public function, shows the answer."""
